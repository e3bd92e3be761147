{{- define "kuryr.image" -}}
{{- if .Values.image.digest -}}
{{ printf "%s@%s" .Values.image.repository .Values.image.digest | quote }}
{{- else -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
{{- end -}}
{{- end }}
{{- define "kuryr.apiServer" }}
{{- if .Values.apiServer.host }}
            - {name: KUBERNETES_SERVICE_HOST, value: {{ .Values.apiServer.host | quote }}}
{{- end }}
{{- if .Values.apiServer.port }}
            - {name: KUBERNETES_SERVICE_PORT, value: {{ .Values.apiServer.port | quote }}}
{{- end }}
{{- end }}
{{- define "kuryr.readiness" }}
          readinessProbe:
            exec: {command: [/usr/bin/kuryr, --socket, {{ . }}, status]}
            initialDelaySeconds: 2
            timeoutSeconds: 10
{{- end }}
