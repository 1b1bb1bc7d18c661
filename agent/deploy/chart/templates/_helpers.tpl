{{- define "rankwatch-agent.fullname" -}}
{{- $chart := default .Chart.Name .Values.nameOverride -}}
{{- $name := contains $chart .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $chart) -}}
{{- default $name .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{- define "rankwatch-agent.namespace" -}}
{{- default .Release.Namespace .Values.namespace.name -}}
{{- end }}

{{- define "rankwatch-agent.serviceAccountName" -}}
{{- $default := .Values.serviceAccount.create | ternary (include "rankwatch-agent.fullname" .) "default" -}}
{{- default $default .Values.serviceAccount.name -}}
{{- end }}

{{- define "rankwatch-agent.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "rankwatch-agent.labels" -}}
{{ include "rankwatch-agent.selectorLabels" . }}
app.kubernetes.io/part-of: rankwatch
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "rankwatch-agent.image" -}}
{{- $tag := default .Chart.AppVersion .Values.image.tag -}}
{{ .Values.image.repository }}:{{ $tag }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{/* Privileges that a chosen one brings with it. */}}
{{- define "rankwatch-agent.privileges" -}}
{{- $chosen := .Values.privileges -}}
{{- $kernelLog := or $chosen.kernelLog $chosen.privileged -}}
{{- $capabilities := list -}}
{{- if $chosen.blackBoxes -}}
{{- $capabilities = concat $capabilities (list "DAC_OVERRIDE" "FOWNER" "CHOWN") -}}
{{- end -}}
{{- if $chosen.userFiles -}}
{{- $capabilities = concat $capabilities (list "SETUID" "SETGID" "KILL") -}}
{{- end -}}
{{- if $chosen.stacks -}}
{{- $capabilities = append $capabilities "SYS_PTRACE" -}}
{{- end -}}
{{- if $kernelLog -}}
{{- $capabilities = append $capabilities "SYSLOG" -}}
{{- end -}}
kernelLog: {{ $kernelLog }}
capabilities: {{ toJson $capabilities }}
processes: {{ or $chosen.processes $chosen.stacks }}
{{/* The pod-resources socket is root's, and Kubernetes gives an added capability to user 0 only. */ -}}
root: {{ or $chosen.root $chosen.pods (gt (len $capabilities) 0) }}
{{- end }}

{{/* fsGroup lets the agent read its Secrets; host paths ignore it. No user of the node has the id 65532. */}}
{{- define "rankwatch-agent.podSecurityContext" -}}
{{- $privileges := include "rankwatch-agent.privileges" . | fromYaml -}}
{{- $id := $privileges.root | ternary 0 65532 -}}
{{- $context := dict "runAsUser" $id "runAsGroup" $id "fsGroup" 65532 "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- range $name, $value := .Values.podSecurityContext -}}
{{- $_ := set $context $name $value -}}
{{- end -}}
{{- if not (hasKey $context "runAsNonRoot") -}}
{{- $_ := set $context "runAsNonRoot" (ne (int $context.runAsUser) 0) -}}
{{- end -}}
{{- toYaml $context -}}
{{- end }}

{{- define "rankwatch-agent.securityContext" -}}
{{- $privileges := include "rankwatch-agent.privileges" . | fromYaml -}}
{{- $capabilities := dict "drop" (list "ALL") -}}
{{- with $privileges.capabilities -}}
{{- $_ := set $capabilities "add" . -}}
{{- end -}}
{{- $context := dict "readOnlyRootFilesystem" true "capabilities" $capabilities -}}
{{- if .Values.privileges.privileged -}}
{{- $_ := set $context "privileged" true -}}
{{- else -}}
{{/* Not beside privileged, because the API refuses that. */ -}}
{{- $_ := set $context "allowPrivilegeEscalation" false -}}
{{- end -}}
{{- range $name, $value := .Values.securityContext -}}
{{- $_ := set $context $name $value -}}
{{- end -}}
{{- toYaml $context -}}
{{- end }}

{{/* Settings of the agent: those that follow from other values, and .Values.settings over them. */}}
{{- define "rankwatch-agent.settings" -}}
{{- $settings := dict
  "cluster" .Values.cluster
  "listen" (printf "%s:%v" .Values.listen.address .Values.listen.port)
  "probe_listen" (printf "%s:%v" (.Values.privileges.hostNetwork | ternary "127.0.0.1" .Values.listen.address) .Values.listen.probePort)
  "directory" .Values.blackBoxes.directory
  "procfs" "/host/proc"
  "sysfs" "/host/sys"
  "log_format" "json" -}}
{{- if not .Values.privileges.hostNetwork -}}
{{/* It asks the network namespace it is in, which then is the pod's own. */ -}}
{{- $_ := set $settings "disabled_collectors" (list "ethtool") -}}
{{- end -}}
{{- with .Values.checkpointPaths -}}
{{- $_ := set $settings "checkpoint_paths" . -}}
{{- $_ := set $settings "rootfs" "/host/root" -}}
{{- end -}}
{{- if .Values.tls.existingSecret -}}
{{- $_ := set $settings "tls_certificate" "/etc/rankwatch/tls/tls.crt" -}}
{{- $_ := set $settings "tls_key" "/etc/rankwatch/tls/tls.key" -}}
{{- if .Values.tls.mutual -}}
{{- $_ := set $settings "tls_client_ca" "/etc/rankwatch/tls/ca.crt" -}}
{{- end -}}
{{- end -}}
{{- if .Values.token.existingSecret -}}
{{- $_ := set $settings "bearer_token_file" (printf "/etc/rankwatch/token/%s" .Values.token.key) -}}
{{- end -}}
{{- range $name, $value := .Values.settings -}}
{{- $_ := set $settings $name $value -}}
{{- end -}}
{{- toYaml $settings -}}
{{- end }}

{{/* A setting as the text of an environment variable: a,b for a list, a=1,b=2 for a table. */}}
{{- define "rankwatch-agent.settingText" -}}
{{- if kindIs "string" . -}}
{{- . -}}
{{- else if kindIs "slice" . -}}
{{- join "," . -}}
{{- else if kindIs "map" . -}}
{{- $pairs := list -}}
{{- range $name, $value := . -}}
{{- $pairs = append $pairs (printf "%s=%s" $name (toJson $value)) -}}
{{- end -}}
{{- join "," $pairs -}}
{{- else -}}
{{- toJson . -}}
{{- end -}}
{{- end }}

{{/* How to probe: (dict "path" PATH "root" $ "probe" TIMES). */}}
{{- define "rankwatch-agent.probe" -}}
httpGet:
  path: {{ .path }}
  port: probes
  {{- if .root.Values.privileges.hostNetwork }}
  host: 127.0.0.1
  {{- end }}
{{ toYaml .probe }}
{{- end }}

{{/* Refuses, in one sentence, what no schema can say. */}}
{{- define "rankwatch-agent.check" -}}
{{- $values := .Values -}}
{{- if and (eq $values.image.tag "latest") (not $values.image.digest) -}}
{{- fail "could not use image.tag = \"latest\": expected a version, because latest names another image every week" -}}
{{- end -}}
{{- if and $values.tls.mutual (not $values.tls.existingSecret) -}}
{{- fail "could not use tls.mutual: expected tls.existingSecret beside it" -}}
{{- end -}}
{{- $interval := $values.monitor.interval -}}
{{- $timeout := $values.monitor.scrapeTimeout -}}
{{- if and (regexMatch "^[0-9]+s$" $interval) (regexMatch "^[0-9]+s$" $timeout) -}}
{{- if gt (trimSuffix "s" $timeout | int) (trimSuffix "s" $interval | int) -}}
{{- fail (printf "could not use monitor.scrapeTimeout = %q: expected at most monitor.interval, which is %s" $timeout $interval) -}}
{{- end -}}
{{- end -}}
{{- include "rankwatch-agent.checkEgress" . -}}
{{- include "rankwatch-agent.checkFiles" . -}}
{{- end }}

{{- define "rankwatch-agent.checkEgress" -}}
{{- $policy := .Values.networkPolicy -}}
{{- $closed := and $policy.enabled $policy.egress.enabled (not $policy.egress.rules) (not .Values.privileges.hostNetwork) -}}
{{- range $name := list "otlp_endpoint" "traces_endpoint" "mlflow_endpoint" "dcgm_endpoint" "nccl_ras_address" "preemption_cloud" -}}
{{- $remote := false -}}
{{- $value := get $.Values.settings $name -}}
{{- range kindIs "slice" $value | ternary $value (list $value) -}}
{{/* The pod's own loopback needs no rule. */ -}}
{{- $remote = or $remote (not (regexMatch "^(auto|(https?://)?(localhost|127\\.[0-9.]+|\\[::1\\])([:/].*)?)?$" .)) -}}
{{- end -}}
{{- if and $closed $remote -}}
{{- fail (printf "could not use settings.%s: expected networkPolicy.egress.rules that admit it, or networkPolicy.egress.enabled=false" $name) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* A setting that names a file must name one that is mounted. */}}
{{- define "rankwatch-agent.checkFiles" -}}
{{- $mounts := list .Values.blackBoxes.directory -}}
{{- range .Values.extraVolumeMounts -}}
{{- $mounts = append $mounts .mountPath -}}
{{- end -}}
{{- range $name := list "dump_directory" "nvml_library" "nvrx_directory" "otlp_headers_file" "mlflow_headers_file" "price_table" "slurm_job_map" "xid_table" -}}
{{- with get $.Values.settings $name -}}
{{- $path := . -}}
{{- $mounted := false -}}
{{- range $mounts -}}
{{- $mounted = or $mounted (hasPrefix (printf "%s/" (trimSuffix "/" .)) (printf "%s/" $path)) -}}
{{- end -}}
{{- if not $mounted -}}
{{- fail (printf "could not use settings.%s = %q: expected a path below a mountPath of extraVolumeMounts" $name $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* The alerts of the chart, with links only where a value says where their pages are. */ -}}
{{- define "rankwatch-agent.alerts" -}}
{{- $values := .Values.prometheusRule -}}
{{- $runbooks := list "https://runbooks.invalid" $values.runbookBaseUrl -}}
{{- $dashboards := list "https://dashboards.invalid" $values.dashboardBaseUrl -}}
{{- $links := dict "runbook_url" $runbooks "dashboard_url" $dashboards -}}
{{- $file := .Files.Get "files/alerts.rules.yml" | fromYaml -}}
{{- range $file.groups -}}
{{- range $rule := .rules -}}
{{- range $name, $urls := $links -}}
{{- if last $urls -}}
{{- with get $rule.annotations $name -}}
{{- $_ := set $rule.annotations $name (replace (first $urls) (trimSuffix "/" (last $urls)) .) -}}
{{- end -}}
{{- else -}}
{{- $_ := unset $rule.annotations $name -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $file -}}
{{- end }}
