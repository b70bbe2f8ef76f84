"""What is a secret, what is none, and what is written down of the environment."""

import pytest

from hpcdist.base.secrets import (
    Stars,
    holds_secret,
    is_secret_file,
    looks_secret,
    redact,
)

SLACK = "https://hooks.slack.com/services/"
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n"
VALUES = [
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "github_pat_11ABCDEFG0abcdefghij_klmn",
    "glpat-abcdefghij0123456789",
    "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH",
    "sk-proj-abcdefghij0123456789abcd",
    "hf_abcDEF1hiJKLm2oPQR3tuVWX4zABCD5fghij",
    "gsk_" + "abcdefghij0123456789" * 2,
    "nvapi-" + "abcdefghij0123456789" * 2,
    "hvs.CAESIabcdefghijklmnop0123456789",
    "xoxb-123456789012-abcdefghij",
    "AKIAIOSFODNN7EXAMPLE",
    "AIza" + "Sy0123456789abcdefghijklmnopqrstuvw",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "Authorization: Bearer abc.def-123",
    "Basic YW5uOmh1bnRlcjI=",
    "postgres://ann:hunter2@db/runs",
    KEY,
]


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


@pytest.mark.parametrize("name", ["NCCL_X", "CUDA_X", "SLURM_X", "PATH"])
@pytest.mark.parametrize("value", VALUES, ids=lambda value: value[:12])
def test_variables_that_are_kept_lose_secrets_whatever_their_name(name, value):
    kept = redact({name: value})
    assert kept in ({}, {name: "postgres://***@db/runs"})


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value[:12])
def test_a_value_looks_secret_whatever_its_name(value):
    assert holds_secret(value)
    assert looks_secret("x", f"a b {value}")
    (starred,) = Stars().args([value])
    assert "***" in starred
    assert not holds_secret(starred)


@pytest.mark.parametrize(
    ("args", "starred"),
    [
        ("--api-key=abc", "--api-key=***"),
        ("--api-key abc --n 3", "--api-key *** --n 3"),
        ("--apiKey=abc", "--apiKey=***"),
        ("--hf_token abc", "--hf_token ***"),
        ("logger.api_key=abc +auth.password=abc", "logger.api_key=*** +auth.password=***"),
        ("--db https://ann:pw@h/x", "--db https://***@h/x"),
        ("--db https://h/x?token=abc&n=3", "--db https://h/x?token=***&n=3"),
        ("--wandb-key 0123456789abcdef01234567", "--wandb-key ***"),
        ('{"password":"abc","n":3}', '{"password":"***","n":3}'),
        ("--wandb_key abc --apiKey abc", "--wandb_key *** --apiKey ***"),
        ("--password 123456 --db-pass abc --pw abc", "--password *** --db-pass *** --pw ***"),
        ("-u ann:abcd1 --auth ann:abcd1", "-u *** --auth ***"),
        ("password:abc {api_key:abc}", "password:*** {api_key:***}"),
        (r"{\"api_key\":\"abc\"}", r'{\"api_key\":\"***"}'),
        ("https://hooks.slack.com/services/T0/B0/abcdefghijklmnop", SLACK + "***"),
        ("--signature 8f3d2c1b-9a7e-6f5d-4c3b-2a1908f7e6d5", "--signature ***"),
    ],
)
def test_secrets_in_arguments_are_starred_out(args, starred):
    assert Stars().args(args.split()) == starred.split()


@pytest.mark.parametrize(
    ("header", "starred"),
    [
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic ***"),
        ("Authorization: token abcdef", "Authorization: token ***"),
        ("X-Api-Key: abc", "X-Api-Key: ***"),
        ("PRIVATE-TOKEN: abc", "PRIVATE-TOKEN: ***"),
        ("Cookie: session=0123456789abcdef01234567", "Cookie: ***"),
        ("Content-Type: text/plain", "Content-Type: text/plain"),
    ],
)
def test_secrets_in_headers_are_starred_out(header, starred):
    assert Stars().args(["--header", header]) == ["--header", starred]


@pytest.mark.parametrize(
    "args",
    [
        "--api-key-env WANDB_API_KEY --api_key_var FOO --sample_token first --classifier-token a",
        "--model sk-resnet-50-imagenet1k-v2-large-finetuned -u 1000:1000 --user ann:users",
        "--passes 3 --pass first --epoch:3 train.key:loss --lr:0.1 a:b 12:30 --token 7",
        "--tokenizer gpt2 --token-count 5 --num-tokens 1000000000 --max-tokens=8000000",
        "--pad-token <pad> --mask_token [MASK] --eos-token </s> --token-dropout 0.125",
        "--password-file pw.txt --api-key-file=key.txt --token ~/.token --token $TOKEN",
        "--image-key image_v2_left_camera --sort-key=size --key loss --cookie crumbs",
        "--use-auth-token true --token none --auth oauth2 --session morning --author ann",
        "--commit 0fe42e2aa0fe42e2aa0fe42e2aa0fe42e2aa0fe4 --monkey=abc --keyboard us",
        "ssh://git@github.com/a/b https://host/x@y ann@host sk-learn --patience 3 --path a",
    ],
)
def test_what_only_resembles_a_secret_stays_in_arguments(args):
    assert Stars().args(args.split()) == args.split()


def test_a_secret_that_was_found_is_starred_out_of_other_texts():
    stars = Stars()
    given = {"args": ["--password", "hunter2"], "model": {"args": {"api_key": "wX7-12"}}}
    hidden = {"args": ["--password", "***"], "model": {"args": {"api_key": "***"}}}
    assert stars.value(given) == hidden
    assert stars.again("bad 'hunter2' of wX7-12, not hunter21") == "bad '***' of ***, not hunter21"
    assert stars.value(["x=hunter2", {"a": 3}]) == ["x=***", {"a": 3}]


@pytest.mark.parametrize(
    "text",
    [
        "a=" * 50_000,
        "a_token=" * 12_000,
        "x://" * 25_000,
        "eyJa.eyJ" * 12_000,
        "a.b-" * 25_000,
        "1" * 50_000 + "a",
        "https://" + "a@" * 50_000,
        '"a":' + "'" * 50_000,
        KEY * 1000,
        "--a " * 25_000,
    ],
    ids=lambda text: text[:10].strip(),
)
@pytest.mark.timeout(20)
def test_no_text_takes_long_to_judge(text):
    Stars().value({"x_key": text, "x": [text, text]})


@pytest.mark.parametrize(
    "path",
    [
        *(
            ".env",
            "a/.env.local",
            ".env.production",
            "prod.env",
            ".netrc",
            "id_rsa",
            "a/id_ed25519",
        ),
        *("ID_RSA", "id_rsa.bak", ".ENV", ".envrc", "kubeconfig", "ann.keytab", "a/.s3cfg"),
        *(".streamlit/secrets.toml", "application_default_credentials.json", ".vault-token"),
        *(".pgpass", ".pypirc", ".git-credentials", ".aws/credentials", "kaggle.json", "x.p12"),
    ],
)
def test_files_that_hold_secrets_are_known_by_their_names(path):
    assert is_secret_file(path)


@pytest.mark.parametrize(
    "path",
    [
        *(".env.example", ".env.local.sample", "example.env", "id_rsa.pub", ".env/lib/a.py"),
        *("environment.yaml", "credentials.py", "token.py", "secrets.py", "a.pem", "envs/a"),
        *("tests/fixtures/id_rsa", "testdata/.env", "kubeconfig.py", "docs/kubeconfig.md"),
    ],
)
def test_other_files_are_not_taken_for_secret(path):
    assert not is_secret_file(path)
