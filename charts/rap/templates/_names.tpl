{{/* Names, labels and images. */}}
{{- define "rap.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{- define "rap.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "rap.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Cluster-wide objects of two releases must not meet. */}}
{{- define "rap.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "rap.fullname" .) | trunc 60 | trimSuffix "-" -}}
{{- end }}

{{- define "rap.selectorLabels" -}}
app.kubernetes.io/name: {{ include "rap.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "rap.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "rap.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: rap
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "rap.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "rap.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name: name an account that exists, or set serviceAccount.create=true" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{- define "rap.leaseName" -}}
{{- default (include "rap.fullname" .) .Values.leaderElection.leaseName -}}
{{- end }}

{{- define "rap.priorityClassName" -}}
{{- if .Values.priorityClass.create -}}
{{- default (include "rap.clusterName" .) .Values.priorityClass.name -}}
{{- else -}}
{{- .Values.priorityClassName -}}
{{- end -}}
{{- end }}

{{/* An image by its parts: dict "image" ... "default" (a tag). A digest wins over a tag. */}}
{{- define "rap.image" -}}
{{- $path := .image.repository -}}
{{- if .image.registry -}}
{{- $path = printf "%s/%s" (trimSuffix "/" .image.registry) .image.repository -}}
{{- end -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $path .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $path (default .default .image.tag) -}}
{{- end -}}
{{- end }}

{{- define "rap.testNamespace" -}}
{{- if .Values.test.namespace -}}
{{- .Values.test.namespace -}}
{{- else if .Values.watchNamespaces -}}
{{- first .Values.watchNamespaces -}}
{{- else -}}
{{- .Release.Namespace -}}
{{- end -}}
{{- end }}
