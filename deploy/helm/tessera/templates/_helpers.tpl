{{- define "tessera.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "tessera.fullname" -}}
{{- $name := include "tessera.name" . -}}
{{- (contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name)) | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "tessera.selector" -}}
app.kubernetes.io/name: {{ include "tessera.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels of the serving pods, by which services and pools find them. A model over several pods has one that serves. */}}
{{- define "tessera.servingSelector" -}}
{{ include "tessera.selector" . }}
app.kubernetes.io/component: server
{{- if eq .Values.workload "LeaderWorkerSet" }}
leaderworkerset.sigs.k8s.io/worker-index: "0"
{{- end }}
{{- end -}}

{{- define "tessera.labels" -}}
{{ include "tessera.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "tessera.serviceAccount" -}}
{{- default (.Values.serviceAccount.create | ternary (include "tessera.fullname" .) "default") .Values.serviceAccount.name -}}
{{- end -}}

{{- define "tessera.image" -}}
{{ .Values.imageRegistry }}{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}

{{/* Milliseconds of a TIME setting: "500ms", "2m", "30s", or seconds without a unit. */}}
{{- define "tessera.milliseconds" -}}
{{- $text := toString . -}}
{{- if hasSuffix "ms" $text }}{{ trimSuffix "ms" $text | int64 -}}
{{- else if hasSuffix "m" $text }}{{ mul (trimSuffix "m" $text | int64) 60000 -}}
{{- else }}{{ mul (trimSuffix "s" $text | int64) 1000 -}}
{{- end -}}
{{- end -}}

{{- define "tessera.graceSeconds" -}}
{{- if .Values.lifecycle.graceSeconds }}{{ .Values.lifecycle.graceSeconds -}}
{{- else -}}
{{- $drain := add (include "tessera.milliseconds" (index .Values.settings "drain-delay")) (include "tessera.milliseconds" (index .Values.settings "drain-timeout")) -}}
{{- add .Values.lifecycle.preStopSeconds (div (add $drain 999) 1000) 15 -}}
{{- end -}}
{{- end -}}

{{- define "tessera.keysSecret" -}}
{{- if .Values.apiKeys.secret }}{{ .Values.apiKeys.secret }}{{ else if .Values.apiKeys.keys }}{{ include "tessera.fullname" . }}-keys{{ end -}}
{{- end -}}

{{- define "tessera.claim" -}}
{{- if .Values.checkpoints.claim }}{{ .Values.checkpoints.claim }}{{ else if .Values.checkpoints.create }}{{ include "tessera.fullname" . }}-checkpoints{{ end -}}
{{- end -}}

{{/* Folder that the init container fetches into. */}}
{{- define "tessera.downloadPath" -}}
{{- eq .Values.workload "StatefulSet" | ternary .Values.storage.path .Values.checkpoints.path -}}
{{- end -}}

{{- define "tessera.ranks" -}}
{{- mul .Values.ranks.perPod .Values.ranks.pods -}}
{{- end -}}

{{/* The server's file of settings: the values, and those that other values decide. */}}
{{- define "tessera.settings" -}}
{{- range $name, $value := .Values.settings }}
{{ $name }}: {{ if kindIs "bool" $value }}{{ ternary "on" "off" $value | quote }}{{ else if kindIs "float64" $value }}{{ int64 $value }}{{ else }}{{ $value | quote }}{{ end }}
{{- end }}
{{- if gt (include "tessera.ranks" . | int) 1 }}
tensor-parallel: {{ include "tessera.ranks" . }}
{{- end }}
{{- if include "tessera.keysSecret" . }}
api-key-file: /etc/tessera/keys/keys
{{- end }}
{{- if .Values.tls.secret }}
tls-cert: /etc/tessera/tls/tls.crt
tls-key: /etc/tessera/tls/tls.key
{{- end }}
{{- if .Values.kvEvents.enabled }}
kv-events: tcp://*:{{ .Values.kvEvents.port }}
{{- end }}
{{- end -}}

{{/* Values that contradict each other; every workload includes this. */}}
{{- define "tessera.check" -}}
{{- if and (gt (int .Values.ranks.pods) 1) (ne .Values.workload "LeaderWorkerSet") }}
{{- fail "ranks.pods: a model over several pods needs workload: LeaderWorkerSet" }}
{{- end }}
{{- if and (le (int .Values.ranks.pods) 1) (eq .Values.workload "LeaderWorkerSet") }}
{{- fail "workload: LeaderWorkerSet is for a model over several pods; set ranks.pods" }}
{{- end }}
{{- if and .Values.tls.secret (eq .Values.probes.type "grpc") }}
{{- fail "probes.type: gRPC probes cannot use TLS; set http" }}
{{- end }}
{{- if and .Values.tls.secret .Values.load.enabled }}
{{- fail "load.enabled: tessera-load does not use TLS" }}
{{- end }}
{{- if and .Values.apiKeys.secret .Values.apiKeys.keys }}
{{- fail "apiKeys: either secret or keys" }}
{{- end }}
{{- if and .Values.checkpoints.claim .Values.checkpoints.create }}
{{- fail "checkpoints: either claim or create" }}
{{- end }}
{{- if and .Values.download.enabled (not .Values.download.files) }}
{{- fail "download.files: which ones?" }}
{{- end }}
{{- if and .Values.download.enabled (ne .Values.workload "StatefulSet") (not (include "tessera.claim" .)) }}
{{- fail "download: into which claim? Set checkpoints.claim or checkpoints.create, or workload: StatefulSet" }}
{{- end }}
{{- if and .Values.autoscaling.enabled .Values.keda.enabled }}
{{- fail "autoscaling and keda: either of them" }}
{{- end }}
{{- end -}}
