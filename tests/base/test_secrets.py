"""What is a secret, and what is none."""

import pytest

from hpcdist.base.secrets import Stars, holds_secret, is_secret_file, looks_secret

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n"
TOKENS = """\
ghp_16C7e42F292c6912E7710c838347Ae178B4a github_pat_11ABCDEFG0abcdefghij_klmn
glpat-abcdefghij0123456789 hf_abcdefghijklmnopqrstuvwxyzABCDEFGH AKIAIOSFODNN7EXAMPLE
sk-proj-abcdefghij0123456789abcd hf_abcDEF1hiJKLm2oPQR3tuVWX4zABCD5fghij
gsk_abcdefghij0123456789abcdefghij0123456789 nvapi-abcdefghij0123456789abcdefghij0123456789
hvs.CAESIabcdefghijklmnop0123456789 xoxb-123456789012-abcdefghij
eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl postgres://ann:hunter2@db/runs"""
VALUES = [
    *TOKENS.split(),
    "AIza" + "Sy0123456789abcdefghijklmnopqrstuvw",
    "Authorization: Bearer abc.def-123",
    "Basic YW5uOmh1bnRlcjI=",
    KEY,
]
ADDRESSES = """\
https://ann:pass@host/x -> https://***@host/x
https://ann:p@ss:w@host/x -> https://***@host/x
a:https://u:p@h/1:ftp://v:q@i/2 -> a:https://***@h/1:ftp://***@i/2
https://host/a@b -> https://host/a@b
/usr/bin:/home/ann@site/bin -> /usr/bin:/home/ann@site/bin"""


@pytest.mark.parametrize("line", ADDRESSES.splitlines())
def test_passwords_in_urls_are_left_out(line):
    value, kept = line.split(" -> ")
    assert Stars().text(value) == kept


@pytest.mark.parametrize(
    ("setting", "is_secret"),
    [
        ("WANDB_API_KEY=0123456789abcdef", True),
        ("HF_TOKEN=hf_x", True),
        ("PASSWORD_PROD=hunter2", True),
        ("HTTPS_PROXY=http://ann:s3cret@proxy:3128", True),
        ("NCCL_DEBUG=INFO", False),
        ("TOKENIZERS_PARALLELISM=false", False),
        ("WANDB_API_KEY_FILE=/home/ann/.wandb", False),
        ("HF_TOKEN=$(cat ~/.hf)", False),
        ("MAX_TOKENS=4096", False),
        ("HTTPS_PROXY=http://proxy:3128", False),
    ],
)
def test_a_password_or_a_token_looks_secret_and_a_switch_or_a_path_does_not(setting, is_secret):
    name, _, value = setting.partition("=")
    assert looks_secret(name, value) is is_secret


@pytest.mark.parametrize("value", VALUES, ids=lambda value: value[:12])
def test_a_value_looks_secret_whatever_its_name(value):
    assert holds_secret(value)
    assert looks_secret("x", f"a b {value}")
    (starred,) = Stars().args([value])
    assert "***" in starred
    assert not holds_secret(starred)


ARGUMENTS = r"""
--api-key=abc -> --api-key=***
--api-key abc --n 3 -> --api-key *** --n 3
--hf_token abc --api_key_2 abc -> --hf_token *** --api_key_2 ***
logger.api_key=abc +auth.password=abc -> logger.api_key=*** +auth.password=***
--db https://ann:pw@h/x -> --db https://***@h/x
--db https://h/x?token=abc&n=3 -> --db https://h/x?token=***&n=3
{"password":"abc","n":3} -> {"password":"***","n":3}
--api-key-prod 0123456789abcdef01234567 -> --api-key-prod ***
--wandb_key abc --apiKey abc -> --wandb_key *** --apiKey ***
--password 123456 --db-pass abc --pw abc -> --password *** --db-pass *** --pw ***
password:abc {api_key:abc} -> password:*** {api_key:***}
{\"api_key\":\"abc\"} -> {\"api_key\":\"***"}
https://hooks.slack.com/services/T0/B0/abcdefghijklmnop -> https://hooks.slack.com/services/***
--signature 8f3d2c1b-9a7e-6f5d-4c3b-2a1908f7e6d5 -> --signature ***"""


@pytest.mark.parametrize("line", ARGUMENTS.strip().splitlines())
def test_secrets_in_arguments_are_starred_out(line):
    args, starred = line.split(" -> ")
    assert Stars().args(args.split()) == starred.split()


HEADERS = """\
Authorization: Basic dXNlcjpwYXNz -> Authorization: Basic ***
Authorization: token abcdef -> Authorization: token ***
X-Api-Key: abc -> X-Api-Key: ***
PRIVATE-TOKEN: abc -> PRIVATE-TOKEN: ***
Cookie: session=0123456789abcdef01234567 -> Cookie: ***
Content-Type: text/plain -> Content-Type: text/plain"""


@pytest.mark.parametrize("line", HEADERS.splitlines())
def test_secrets_in_headers_are_starred_out(line):
    header, starred = line.split(" -> ")
    assert Stars().args(["--header", header]) == ["--header", starred]


@pytest.mark.parametrize(
    "args",
    [
        "--api-key-env WANDB_API_KEY --api_key_var FOO --token-mixer pooling --token-merging 12",
        "--model sk-resnet-50-imagenet1k-v2-large-finetuned -u 1000:1000 --user ann:users",
        "--passes 3 --pass first --epoch:3 train.key:loss --lr:0.1 a:b 12:30 --token 7",
        "--tokenizer gpt2 --token-count 5 --num-tokens 1000000000 --max-tokens=8000000",
        "--password-file pw.txt --api-key-file=key.txt --token ~/.token --token $TOKEN",
        "--image-key image_v2_left_camera --sort-key=size --key loss --cookie crumbs",
        "--use-auth-token true --token none --auth oauth2 --session morning --author ann",
        "--commit 0fe42e2aa0fe42e2aa0fe42e2aa0fe42e2aa0fe4 --monkey=abc --keyboard us",
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
        "a=" * 25_000,
        "eyJa.eyJ" * 12_000,
        "a.b-" * 12_000,
        "https://" + "a@" * 25_000,
        '"a":' + "'" * 25_000,
    ],
    ids=lambda text: text[:10].strip(),
)
@pytest.mark.timeout(20)
def test_no_text_takes_long_to_judge(text):
    Stars().value({"x_key": text, "x": [text, text]})


SECRET_FILES = (
    ".env a/.env.local .env.production prod.env .netrc id_rsa a/id_ed25519 ID_RSA id_rsa.bak .ENV "
    ".envrc kubeconfig ann.keytab a/.s3cfg .streamlit/secrets.toml .vault-token .pgpass .pypirc "
    "application_default_credentials.json .git-credentials a/.aws/credentials kaggle.json x.p12"
)
OTHER_FILES = (
    ".env.example .env.local.sample example.env id_rsa.pub .env/lib/a.py .env.39/lib/a.py envs/a "
    "environment.yaml credentials.py token.py secrets.py a.pem kubeconfig.py docs/kubeconfig.md"
)


def test_files_that_hold_secrets_are_known_by_their_names():
    assert [path for path in SECRET_FILES.split() if not is_secret_file(path)] == []
    assert [path for path in OTHER_FILES.split() if is_secret_file(path)] == []
