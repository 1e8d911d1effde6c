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

{{/* Bytes of a quantity ("4Gi", "500M") or of a BYTES setting ("4GiB"). */}}
{{- define "tessera.bytes" -}}
{{- $text := toString . | trimSuffix "B" -}}
{{- $units := dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 -}}
{{- $unit := regexFind "[A-Za-z]+$" $text -}}
{{- mulf (trimSuffix $unit $text | float64) (index $units $unit | default 1) | ceil | int64 -}}
{{- end -}}

{{/*
Bytes that a pod needs, as tessera-server --plan counts them (server/start/request_memory.cpp): of each rank,
and of requests. Empty: settings.kv-memory does not tell. The server refuses requests above nine tenths
of the pod's limit, so the limit is ten ninths of them.
*/}}
{{- define "tessera.memory" -}}
{{- $of := .Values.settings -}}
{{- $kv := include "tessera.bytes" (index $of "kv-memory" | default 0) | int64 -}}
{{- if eq (index $of "device" | default "cpu") "cuda" }}{{ $kv = 0 }}{{ else if not $kv }}{{ $kv = -1 }}{{ end -}}
{{- if ge $kv 0 -}}
{{- $body := include "tessera.bytes" (index $of "http-max-body" | default "8MiB") | int64 -}}
{{- $message := include "tessera.bytes" (index $of "grpc-max-message" | default "8MiB") | int64 -}}
{{- $parsing := mul (sub (index $of "work-threads" | default 2 | int64) 1) (max $body $message) 48 -}}
{{- $connection := add 32768 (include "tessera.bytes" (index $of "http-max-header" | default "16KiB")) 16384 -}}
{{- $connections := mul (index $of "http-max-connections" | default 4096 | int64) $connection -}}
{{- $stored := hasKey $of "response-store" | ternary (index $of "response-store") "64MiB" -}}{{/* 0: none */}}
{{- $requests := add (include "tessera.bytes" (index $of "request-memory" | default "1GiB")) $parsing $connections (include "tessera.bytes" $stored) 134217728 -}}{{/* 4 grammars that are compiled */}}
{{- $stores := include "tessera.bytes" (index $of "kv-host-memory" | default 0) | int64 -}}
{{- if or $stores (index $of "kv-disk") }}{{ $stores = add $stores 134217728 }}{{ end -}}{{/* blocks on their way */}}
{{- $rank := add (include "tessera.bytes" .Values.memory.perRank) $kv $stores -}}
{{- div (mul (add $requests (mul .Values.ranks.perPod $rank)) 10) 9 -}}
{{- end -}}
{{- end -}}

{{/* The values, with the memory that the settings need where they do not tell it. */}}
{{- define "tessera.resources" -}}
{{- $resources := deepCopy .Values.resources -}}
{{- $needed := include "tessera.memory" . -}}
{{- range $part := list "requests" "limits" -}}
{{- $these := index $resources $part | default dict -}}
{{- if and $needed (hasKey $these "memory") (lt (include "tessera.bytes" $these.memory | int64) ($needed | int64)) -}}
{{- fail (printf "resources.%s.memory: %v is less than the %s bytes that the settings need; see memory, settings.kv-memory and settings.request-memory" $part $these.memory $needed) -}}
{{- end -}}
{{- if not (hasKey $these "memory") -}}
{{- if not $needed -}}
{{- fail (printf "resources.%s.memory: set it, or settings.kv-memory, from which it is computed" $part) -}}
{{- end -}}
{{- $_ := set $these "memory" (printf "%dMi" (div (add ($needed | int64) 1048575) 1048576)) -}}
{{- end -}}
{{- $_ := set $resources $part $these -}}
{{- end -}}
{{- toYaml $resources -}}
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

{{/*
Threads of each rank by the pod's CPU limit: with one for each core of the node, the kernel would stop
them all for most of the time. Empty: there is no limit.
*/}}
{{- define "tessera.threads" -}}
{{- $cpu := dig "limits" "cpu" "" .Values.resources | toString -}}
{{- if $cpu -}}
{{- $thousandths := hasSuffix "m" $cpu | ternary (trimSuffix "m" $cpu | float64) (mulf (float64 $cpu) 1000) -}}
{{- max 1 (div ($thousandths | int64) (mul 1000 .Values.ranks.perPod)) -}}
{{- end -}}
{{- end -}}

{{/* The server's file of settings: the values, and those that other values decide. */}}
{{- define "tessera.settings" -}}
{{- range $name, $value := .Values.settings }}
{{ $name }}: {{ if kindIs "bool" $value }}{{ ternary "on" "off" $value | quote }}{{ else if and (kindIs "float64" $value) (eq $value (floor $value)) }}{{ int64 $value }}{{ else if kindIs "float64" $value }}{{ $value }}{{ else }}{{ $value | quote }}{{ end }}
{{- end }}
{{- if and (include "tessera.threads" .) (not (hasKey .Values.settings "threads")) }}
threads: {{ include "tessera.threads" . }}
{{- end }}
{{- if gt (include "tessera.ranks" . | int) 1 }}
tensor-parallel: {{ include "tessera.ranks" . }}
{{- end }}
{{- if include "tessera.keysSecret" . }}
api-key-file: /etc/tessera/keys/keys
{{- end }}
{{- if .Values.tenants.secret }}
tenants: /etc/tessera/tenants/tenants.yaml
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
{{- if and .Values.tenants.secret (include "tessera.keysSecret" .) }}
{{- fail "tenants.secret: its file has the keys; leave apiKeys empty" }}
{{- end }}
{{- if and .Values.tenants.secret .Values.load.enabled }}
{{- fail "load.enabled: tessera-load takes its key from apiKeys, which a tenant file replaces" }}
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
{{- with index .Values.settings "kv-disk" }}
{{- $size := include "tessera.bytes" (index $.Values.settings "kv-disk-size" | default "10GiB") | int64 }}
{{- $own := and (eq $.Values.workload "StatefulSet") (hasPrefix (printf "%s/" $.Values.storage.path) .) }}
{{- $other := false }}
{{- range $mount := $.Values.extraVolumeMounts }}
{{- $other = or $other (eq (trimSuffix "/" $mount.mountPath) (index $.Values.settings "kv-disk")) (hasPrefix (printf "%s/" (trimSuffix "/" $mount.mountPath)) (index $.Values.settings "kv-disk")) }}
{{- end }}
{{- if not (or $own $other) }}
{{- fail (printf "settings.kv-disk: %s is on no volume; set workload: StatefulSet and a folder below storage.path, or extraVolumeMounts" .) }}
{{- end }}
{{- if and $own (ge $size (include "tessera.bytes" $.Values.storage.size | int64)) }}
{{- fail (printf "settings.kv-disk-size: %d bytes do not fit into storage.size, %s" $size $.Values.storage.size) }}
{{- end }}
{{- end }}
{{- if and .Values.autoscaling.enabled .Values.keda.enabled }}
{{- fail "autoscaling and keda: either of them" }}
{{- end }}
{{- end -}}
