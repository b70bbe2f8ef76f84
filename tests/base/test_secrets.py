"""Which environment variables are written down."""

import pytest

from hpcdist.base.secrets import looks_secret, redact


@pytest.mark.parametrize(
    "name",
    [
        *("FAKE_API_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "HF_TOKEN", "SSH_AUTH_SOCK"),
        *("HPCDIST_API_KEY", "NCCL_SECRET", "TORCH_HUB_TOKEN", "SLURM_JWT", "CONDA_PASSWORD"),
        *("LSF_SESSION_COOKIE", "CUDA_PRIVATE", "MY_VARIABLE", "HOME", "PS1", "http_proxy"),
    ],
)
def test_secrets_and_what_results_do_not_depend_on_are_left_out(name):
    assert redact({name: "value"}) == {}


@pytest.mark.parametrize(
    "name",
    [
        *("OMP_NUM_THREADS", "NCCL_DEBUG", "CUDA_VISIBLE_DEVICES", "PATH", "LD_LIBRARY_PATH"),
        *("SLURM_JOB_ID", "LSB_HOSTS", "TORCH_LOGS", "PYTHONPATH", "VIRTUAL_ENV"),
    ],
)
def test_what_results_depend_on_is_kept(name):
    assert redact({name: "value"}) == {name: "value"}


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("https://ann:pass@host/x", "https://***@host/x"),
        ("https://ann:p@ss:w@host/x", "https://***@host/x"),
        ("https://token@host/x", "https://***@host/x"),
        ("a:https://u:p@h/1:ftp://v:q@i/2", "a:https://***@h/1:ftp://***@i/2"),
        ("https://host/a@b", "https://host/a@b"),
        ("/usr/bin:/home/ann@site/bin", "/usr/bin:/home/ann@site/bin"),
    ],
)
def test_passwords_in_urls_are_left_out(value, kept):
    assert redact({"TORCH_HOME": value}) == {"TORCH_HOME": kept}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WANDB_API_KEY", "0123456789abcdef"),
        ("HF_TOKEN", "hf_x"),
        ("DB_PASSWORD", "12345678"),
        ("HTTPS_PROXY", "http://ann:s3cret@proxy:3128"),
    ],
)
def test_a_password_or_a_token_looks_secret(name, value):
    assert looks_secret(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_DEBUG", "INFO"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("WANDB_API_KEY_FILE", "/home/ann/.wandb"),
        ("HF_TOKEN", "$(cat ~/.hf)"),
        ("MAX_TOKENS", "4096"),
        ("HTTPS_PROXY", "http://proxy:3128"),
    ],
)
def test_a_switch_a_number_and_a_path_do_not_look_secret(name, value):
    assert not looks_secret(name, value)
