#!/bin/bash
# hpcdist: {{ job_comment }}
{% for directive in directives %}
#flux: {{ directive }}
{% endfor %}
{% include "setup.sh.j2" %}

set -euo pipefail
{% include "own_folders.sh.j2" %}
cd {{ cwd | quote }}
{% for name, value in settings.items() %}
export {{ name }}={{ value | quote }}
{% endfor %}
{% for name, value in environment.items() %}
export {{ name }}="${{ '{' }}{{ name }}:-{{ value }}}"
{% endfor %}
{% set of_folder = submitit_folder | quote %}
# One agent per node, which forks the node's ranks.
exec flux run --nodes={{ num_nodes }} --tasks-per-node=1 --output={{ output | quote }} \
{% include "start_agent.sh.j2" %}

