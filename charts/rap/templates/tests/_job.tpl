{{/* The RAPJob of `helm test`: one CPU rank over a few thousand synthetic rows in a folder of the pod's own. */}}
{{- define "rap.testJob" -}}
{{- $image := include "rap.image" (dict "image" .Values.test.image "default" .Chart.AppVersion) -}}
apiVersion: rap.dev/v1alpha1
kind: RAPJob
metadata:
  name: {{ include "rap.fullname" . }}-test
  namespace: {{ include "rap.testNamespace" . }}
spec:
  source:
    files: {path: /data/events, format: parquet, eventTime: {column: ts}}
  columns: {label: int32, "int_{0..12}": float32, "cat_{0..25}": "list<int64>"}
  label: label
  features:
  - columns: ["int_{0..12}"]
    ops: [{fillNull: {value: 0}}, {log1p: {min: 0}}]
  - columns: ["cat_{0..25}"]
    ops: [{fillNull: {value: 0}}, {sigridHash: {salt: 0}}, {firstx: {count: 1}}]
    table: {rows: 1000, dim: 8}
  model: {dlrm: {bottom: [16, 8], top: [16, 1]}}
  checkpoint: {path: /data/checkpoints, intervalSeconds: 30, keep: 1}
  restartPolicy: {maxRestarts: 1, delaySeconds: 1}
  trainer:
    image: {{ $image | quote }}
    batchSizePerGpu: 256
    podTemplate:
{{- $pod := include "rap.testPod" (dict "image" $image "values" .Values) | fromYaml }}
{{ toYaml (mergeOverwrite $pod (deepCopy .Values.test.podTemplate)) | indent 6 }}
{{- end }}

{{- define "rap.testPod" -}}
spec:
  {{- with .values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext: {runAsUser: 65532, runAsGroup: 65532, fsGroup: 65532}
  initContainers:
  - name: data
    image: {{ .image | quote }}
    command: [rap, produce, --out, /data/events, --rows, {{ .values.test.rows | quote }}]
    securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
    volumeMounts: [{name: data, mountPath: /data}]
  containers:
  - name: trainer
    volumeMounts: [{name: data, mountPath: /data}]
  volumes:
  - name: data
    emptyDir: {}
{{- end }}
