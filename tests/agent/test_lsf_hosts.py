"""One command on every host of an LSF job."""

import re
import subprocess

from hpcdist.schedulers.hosts import Host, Job, host_script, launch_command, read_hosts


def test_hosts_are_counted_once_each_and_in_order():
    assert read_hosts("hostB 2 hostA 4 ") == [
        Host(name="hostB", slots=2),
        Host(name="hostA", slots=4),
    ]
    assert read_hosts("") == []


def test_a_launcher_is_given_plain_words_and_quotes_where_there_are_none():
    command = ["/bin/sh", "/runs/a/7_host.sh", "1"]
    words = launch_command("blaunch -z {host} {command}", command, host="hostB")
    assert words == ["blaunch", "-z", "hostB", *command]
    inside = launch_command("ssh {host} 'exec {command}'", command, host="hostB")
    assert inside == ["ssh", "hostB", "exec /bin/sh /runs/a/7_host.sh 1"]
    spaced = ["/bin/sh", "/my runs/7_host.sh"]
    assert launch_command("rsh {host} {command}", spaced, host="b")[2:] == [
        "/bin/sh",
        "'/my runs/7_host.sh'",
    ]


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
