{{- /* Refuses values that cannot work in the cluster that is asked, for both installers. A cluster that
has Kuryr is not refused: its pods run. */ -}}
{{- define "kuryr.validate" -}}
{{- if eq .Values.provider "embedded" -}}
{{- if not (lookup "v1" "ConfigMap" .Release.Namespace "kuryr") -}}
{{- with index (lookup "v1" "Node" "" "") "items" -}}
{{- if ne (len .) 1 -}}
{{- fail (printf "value provider: embedded serves one node, and the cluster has %d; use neutron" (len .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}
