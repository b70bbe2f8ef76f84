"""One command on every host of an LSF job."""

import re
import subprocess

from hpcdist.schedulers.hosts import Job, host_script


def test_a_host_script_is_plain_sh_with_the_environment_but_for_secrets_and_the_first_hosts_own(
    tmp_path,
):
    value = 'it\'s "quoted" $HOME `date`\nand of two lines'
    environment = {
        "VALUE": value,
        "BASH_FUNC_module%%": "() { :; }",
        "CUDA_VISIBLE_DEVICES": "3",
        "HF_TOKEN": "hf_1234567890abcdef",
        "LSB_JOBRES_PID": "7",
    }
    command = ["sh", "-c", 'printf %s "$VALUE"', "y z"]
    job = Job([], re.compile("LSB_.*"))
    text = host_script(environment, "/tmp", command, job, logs=str(tmp_path / "7"))
    names = re.findall(r"^export (\w+)", text, re.MULTILINE)
    assert names == ["VALUE", "SUBMITIT_LOCAL_GLOBALID"]
    subprocess.run(
        ["shellcheck", "--shell=sh", "--severity=warning", "-"], input=text, text=True, check=True
    )
    subprocess.run(["sh", "-c", text, "host", "1"], check=True)
    assert (tmp_path / "7_1_log.out").read_text() == value
