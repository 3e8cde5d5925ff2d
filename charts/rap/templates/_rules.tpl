{{/*
What the operator may do where it runs jobs. One rule a kind, no more than it uses: tests/chart takes each verb away
in turn and sees the operator fail. No Secrets, no Nodes, nothing cluster-wide.
*/}}
{{- define "rap.rules" -}}
- apiGroups: [rap.dev]
  resources: [rapjobs]
  verbs: [list, watch, delete]
- apiGroups: [rap.dev]
  resources: [rapjobs/status]
  verbs: [patch]
- apiGroups: [rap.dev]
  resources: [rapjobs/finalizers]
  verbs: [update]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end }}
