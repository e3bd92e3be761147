{{- /* Name of the node that may run the embedded SDN without the label openstack.org/kuryr-sdn: the only
node of a new cluster. An upgrade keeps the name, also if other nodes have joined, because the store
is on that node. Where a node has the label, the label alone counts. */ -}}
{{- define "kuryr.sdnNode" -}}
{{- $name := "" -}}
{{- $labelled := false -}}
{{- $deployment := lookup "apps/v1" "Deployment" .Release.Namespace "kuryr-sdn" -}}
{{- with $deployment -}}
{{- with index .spec.template.spec "affinity" -}}
{{- with index . "nodeAffinity" -}}
{{- with index . "requiredDuringSchedulingIgnoredDuringExecution" -}}
{{- range .nodeSelectorTerms }}{{ range index . "matchFields" }}{{ $name = index .values 0 }}{{ end }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if or $name (not $deployment) -}}
{{- with index (lookup "v1" "Node" "" "") "items" -}}
{{- $only := eq (len .) 1 -}}
{{- range . -}}
{{- with index .metadata "labels" }}{{ if hasKey . "openstack.org/kuryr-sdn" }}{{ $labelled = true }}{{ end }}{{ end -}}
{{- if and $only (not $deployment) }}{{ $name = .metadata.name }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not $labelled }}{{ $name }}{{ end -}}
{{- end }}
