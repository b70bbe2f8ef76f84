#!/bin/bash
# hpcdist: {{ job_comment }}
# Run once for each of the {{ num_nodes }} simulated nodes, at the same time; submitit tells each which one it is.
{% if setup %}
# From the cluster profile.
{% for line in setup %}
{{ line }}
{% endfor %}
{% endif %}
set -euo pipefail
{% include "own_folders.sh.j2" %}
cd {{ cwd | quote }}
{% for name, value in settings.items() %}
export {{ name }}={{ value | quote }}
{% endfor %}
# Libraries read these when they are loaded. Variables that are already set keep their values.
{% for name, value in environment.items() %}
export {{ name }}="${{ '{' }}{{ name }}:-{{ value }}}"
{% endfor %}
# What `python -m submitit.core._submit` does, but without the working directory on the module path: a
# random.py that lies there must not stand in for the standard library's.
exec {{ python | quote }} -u -c '
import sys
sys.path[:] = [folder for folder in sys.path if folder]
from hpcdist.entry import main
main(is_local=True)
' {{ submitit_folder | quote }}
