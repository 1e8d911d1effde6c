{{- define "tessera.probe" -}}
{{- if eq .root.Values.probes.type "grpc" -}}
grpc:
  port: {{ index .root.Values.settings "grpc-port" | int }}
{{- else -}}
httpGet:
  path: /health
  port: http
  scheme: {{ .root.Values.tls.secret | empty | ternary "HTTP" "HTTPS" }}
{{- end }}
periodSeconds: {{ .probe.periodSeconds }}
failureThreshold: {{ .probe.failureThreshold }}
timeoutSeconds: {{ .probe.timeoutSeconds }}
{{- end -}}

{{- define "tessera.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Secrets by the folder of /etc/tessera that each is mounted in, in JSON. */}}
{{- define "tessera.secrets" -}}
{{- $secrets := dict -}}
{{- range $folder, $name := dict "keys" (include "tessera.keysSecret" .) "tenants" .Values.tenants.secret "tls" .Values.tls.secret -}}
{{- if $name }}{{ $_ := set $secrets $folder $name }}{{ end -}}
{{- end -}}
{{- $secrets | toJson -}}
{{- end -}}

{{/* Folders of mounted secrets that the server reads again when they change. */}}
{{- define "tessera.watched" -}}
{{- $folders := list -}}
{{- range $folder, $_ := include "tessera.secrets" . | fromJson }}{{ $folders = append $folders (printf "/etc/tessera/%s" $folder) }}{{ end -}}
{{- join " " $folders -}}
{{- end -}}

{{/* The command: one process, mpirun for the ranks of a pod, or ranks.sh for those of several pods. */}}
{{- define "tessera.command" -}}
{{- $server := list "tessera-server" "--config" "/etc/tessera/settings/tessera.yaml" -}}
{{- if .Values.kvEvents.enabled }}{{/* a flag, because Kubernetes replaces $(POD_IP) in commands alone */}}
{{- $server = concat $server (list "--kv-events-topic" .Values.kvEvents.topic) -}}
{{- end }}
{{- if include "tessera.watched" . -}}
{{- $server = concat (list "sh" "/etc/tessera/settings/reload.sh") $server -}}
{{- end }}
{{- if gt (int .Values.ranks.pods) 1 -}}
{{- $server = concat (list "sh" "/etc/tessera/settings/ranks.sh") $server -}}
{{- else if gt (int .Values.ranks.perPod) 1 -}}
{{- $server = concat (list "mpirun" "-n" (toString .Values.ranks.perPod)) $server -}}
{{- end -}}
{{- prepend (prepend $server "--") "tini" | toJson -}}
{{- end -}}

{{- define "tessera.downloader" -}}
- name: download
  image: {{ .Values.imageRegistry }}{{ .Values.download.image }}
  command: [sh, -c, 'sh /etc/tessera/settings/fetch.sh "$0" </etc/tessera/settings/files.txt', {{ include "tessera.downloadPath" . | quote }}]
  {{- if .Values.download.tokenSecret }}
  env:
    - name: FETCH_TOKEN
      valueFrom:
        secretKeyRef:
          name: {{ .Values.download.tokenSecret }}
          key: token
  {{- end }}
  securityContext:
    {{- include "tessera.containerSecurity" . | nindent 4 }}
  volumeMounts:
    - name: settings
      mountPath: /etc/tessera/settings
      readOnly: true
    - name: {{ eq .Values.workload "StatefulSet" | ternary "storage" "checkpoints" }}
      mountPath: {{ include "tessera.downloadPath" . }}
{{- end -}}

{{/* One container that serves, or (.serves false) that only computes for the leader of its group. */}}
{{- define "tessera.container" -}}
{{- $ := .root -}}
- name: tessera
  image: {{ include "tessera.image" $ }}
  imagePullPolicy: {{ $.Values.image.pullPolicy }}
  command: {{ include "tessera.command" $ }}
  {{- if or $.Values.env $.Values.kvEvents.enabled (include "tessera.watched" $) (gt (int $.Values.ranks.pods) 1) }}
  env:
    {{- with include "tessera.watched" $ }}
    - name: TESSERA_WATCHED
      value: {{ . }}
    {{- end }}
    {{- if $.Values.kvEvents.enabled }}
    - name: POD_IP
      valueFrom:
        fieldRef:
          fieldPath: status.podIP
    {{- end }}
    {{- if gt (int $.Values.ranks.pods) 1 }}
    - name: TESSERA_PODS
      value: {{ $.Values.ranks.pods | quote }}
    - name: TESSERA_RANKS_PER_POD
      value: {{ $.Values.ranks.perPod | quote }}
    - name: TESSERA_CONTROL_PORT
      value: {{ $.Values.ranks.controlPort | quote }}
    {{- end }}
    {{- with $.Values.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
  {{- if .serves }}
  ports:
    - name: http
      containerPort: {{ index $.Values.settings "http-port" | int }}
    - name: grpc
      containerPort: {{ index $.Values.settings "grpc-port" | int }}
    {{- if $.Values.kvEvents.enabled }}
    - name: kv-events
      containerPort: {{ $.Values.kvEvents.port }}
    {{- end }}
  startupProbe:
    {{- include "tessera.probe" (dict "root" $ "probe" $.Values.probes.startup) | nindent 4 }}
  readinessProbe:
    {{- include "tessera.probe" (dict "root" $ "probe" $.Values.probes.readiness) | nindent 4 }}
  livenessProbe:
    {{- include "tessera.probe" (dict "root" $ "probe" $.Values.probes.liveness) | nindent 4 }}
  {{- end }}
  lifecycle:
    preStop:
      exec:
        command: [sleep, {{ $.Values.lifecycle.preStopSeconds | quote }}]
  resources:
    {{- include "tessera.resources" $ | nindent 4 }}
  securityContext:
    {{- include "tessera.containerSecurity" $ | nindent 4 }}
  volumeMounts:
    - name: settings
      mountPath: /etc/tessera/settings
      readOnly: true
    - name: tmp
      mountPath: /tmp
    {{- if gt (include "tessera.ranks" $ | int) 1 }}
    - name: shared-memory
      mountPath: /dev/shm
    {{- end }}
    {{- range $folder, $_ := include "tessera.secrets" $ | fromJson }}
    - name: {{ $folder }}
      mountPath: /etc/tessera/{{ $folder }}
      readOnly: true
    {{- end }}
    {{- if include "tessera.claim" $ }}
    - name: checkpoints
      mountPath: {{ $.Values.checkpoints.path }}
      readOnly: true
    {{- end }}
    {{- if eq $.Values.workload "StatefulSet" }}
    - name: storage
      mountPath: {{ $.Values.storage.path }}
    {{- end }}
    {{- with $.Values.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- define "tessera.volumes" -}}
- name: settings
  configMap:
    name: {{ include "tessera.fullname" . }}
- name: tmp
  emptyDir: {}
{{- if gt (include "tessera.ranks" . | int) 1 }}
- name: shared-memory
  emptyDir:
    medium: Memory
    sizeLimit: {{ .Values.sharedMemory }}
{{- end }}
{{- range $folder, $name := include "tessera.secrets" . | fromJson }}
- name: {{ $folder }}
  secret:
    secretName: {{ $name }}
    defaultMode: 0440
{{- end }}
{{- with include "tessera.claim" . }}
- name: checkpoints
  persistentVolumeClaim:
    claimName: {{ . }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Pod template: labels, annotations and spec. `serves`: false for a worker of a group. */}}
{{- define "tessera.pod" -}}
{{- $ := .root -}}
metadata:
  labels:
    {{- include "tessera.selector" $ | nindent 4 }}
    app.kubernetes.io/component: {{ .serves | ternary "server" "worker" }}
    {{- with $.Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    {{- /* Settings are read at start: a change rolls the pods. Keys and certificates are read again without. */}}
    checksum/settings: {{ include "tessera.settings" $ | sha256sum }}
    {{- with $.Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "tessera.serviceAccount" $ }}
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: {{ include "tessera.graceSeconds" $ }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile:
      type: RuntimeDefault
  {{- with $.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $.Values.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- with $.Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with $.Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $.Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $.Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if and $.Values.topologySpread.enabled .serves }}
  topologySpreadConstraints:
    {{- range $.Values.topologySpread.keys }}
    - maxSkew: {{ $.Values.topologySpread.maxSkew }}
      topologyKey: {{ . }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "tessera.selector" $ | nindent 10 }}
          app.kubernetes.io/component: server
    {{- end }}
  {{- end }}
  {{- if $.Values.download.enabled }}
  initContainers:
    {{- include "tessera.downloader" $ | nindent 4 }}
  {{- end }}
  containers:
    {{- include "tessera.container" (dict "root" $ "serves" .serves) | nindent 4 }}
  volumes:
    {{- include "tessera.volumes" $ | nindent 4 }}
{{- end -}}
