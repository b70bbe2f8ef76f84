"""A stand-in for Azure: the few REST calls that its SDK sends for hpcdist, answered in their form.

It is a proxy that the SDK goes through (HTTPS_PROXY) and that is every host of Azure's to it, by a
certificate of its own. So the SDK's real client runs, with its own retries, log-in and uploads, and
no host but those named here can be spoken to: the certificate is for no other.
"""

import base64
import datetime as dt
import json
import re
import ssl
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.parse import parse_qs, unquote, urlsplit

SUBSCRIPTION = "12345678-1234-1234-1234-123456789abc"
PROVIDER = "Microsoft.MachineLearningServices"
GROUP = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/course"
WORKSPACE = f"{GROUP}/providers/{PROVIDER}/workspaces/ml-course"
ARM = "management.azure.com"
BLOBS = "mlstore.blob.core.windows.net"
IDENTITY_HEADER = "stand-in-identity"
PROFILE = {
    "subscription": SUBSCRIPTION,
    "resource_group": "course",
    "workspace": "ml-course",
    "compute": "gpu-cluster",
    "environment": "torch:3",
}
_MODIFIED = "Mon, 23 Nov 2026 01:00:00 GMT"
_TOKEN = f"e30.{base64.urlsafe_b64encode(json.dumps({'tid': 'tenant'}).encode()).decode()}.sig"


def azure_error(code, message):
    return {"error": {"code": code, "message": message, "details": []}}


def thing(place, properties, **more):
    """What Azure Resource Manager says of something in the workspace."""
    own = {"id": f"{WORKSPACE}/{place}", "name": place.rpartition("/")[2]}
    kind = "/".join(place.split("/")[::2])
    type_ = {"type": f"{PROVIDER}/workspaces/{kind}", "location": "westeurope"}
    return own | type_ | {"properties": properties} | more


COMPUTE = {
    "computeType": "AmlCompute",
    "properties": {
        "vmSize": "Standard_NC24ads_A100_v4",
        "scaleSettings": {"minNodeCount": 0, "maxNodeCount": 4},
    },
}
DATASTORE = {
    "datastoreType": "AzureBlob",
    "accountName": "mlstore",
    "containerName": "blobs",
    "endpoint": "core.windows.net",
    "protocol": "https",
    "credentials": {"credentialsType": "AccountKey"},
    "isDefault": True,
}


class Azure:
    """A workspace with a compute, a datastore, jobs and blobs; tests change it."""

    def __init__(self):
        self.lock = threading.RLock()
        self.requests = []
        """(method, host and path), in their order."""
        self.unknown_hosts = []
        self.jobs, self.codes = {}, {}
        self.blobs = {}
        """container/name -> (bytes, metadata)"""
        self.faults = []

    def fail(self, method, pattern, status, *, times=1, after=False, delay_s=0.0, **answer):
        """Answer so many requests otherwise: with this status (0 breaks the connection off), and
        with `code`, `message` and `headers`; `after`: once they have been carried out."""
        answer = {"code": "", "message": "", "headers": {}} | answer
        how = {"times": times, "after": after, "delay_s": delay_s, "status": status}
        self.faults.append((method, pattern, SimpleNamespace(**how, **answer)))

    def fault(self, method, place):
        with self.lock:
            for of_method, pattern, fault in self.faults:
                if fault.times and of_method == method and re.search(pattern, place):
                    fault.times -= 1
                    return fault
        return None

    def asked(self, method, pattern):
        """Return the requests that match."""
        return [one for one in self.requests if one[0] == method and re.search(pattern, one[1])]

    def set_state(self, name, state):
        self.jobs[name]["properties"]["status"] = state

    def job_ids(self):
        return sorted(self.jobs)

    def put_output(self, job, place, content):
        """Write a file of the mounted output of a job."""
        self.blobs[f"blobs/hpcdist/{job}/{place}"] = (content, {})

    def arm(self, method, path, query, body):  # noqa: PLR0911 - a table of calls
        """Answer a request to Azure Resource Manager."""
        kind, *parts = path.removeprefix(f"{WORKSPACE}/").split("/")
        match kind, *parts:
            case "computes", "gpu-cluster":
                return 200, thing("computes/gpu-cluster", COMPUTE)
            case "datastores", "workspaceblobstore" as name:
                return 200, thing(f"datastores/{name}", DATASTORE)
            case "datastores", "workspaceblobstore", "listSecrets":
                return 200, {"secretsType": "Sas", "sasToken": "sv=2024&sig=standin"}
            case "codes", *_:
                return self._code(method, parts, query, body)
            case "jobs", name if method == "PUT":
                return self._put_job(name, body)
            case "jobs", name if name in self.jobs:
                return 200, self.jobs[name]
            case "jobs", name, "cancel" if name in self.jobs:
                state = self.jobs[name]["properties"]["status"]
                if state in ("Completed", "Failed"):
                    said = f"Run {name} is in the terminal state {state}."
                    return 400, azure_error("UserError", said)
                self.set_state(name, "Canceled")
                return 200, None
        return 404, azure_error("ResourceNotFound", f"The Resource '{path}' was not found.")

    def _code(self, method, parts, query, body):
        name, *rest = parts
        if rest[-1] == "startPendingUpload":
            uri = f"https://{BLOBS}/code-{name}"
            secret = {"credentialType": "SAS", "sasUri": f"{uri}?sv=2024&sig=standin"}
            place = {"blobUri": uri, "storageAccountArmId": "x", "credential": secret}
            answer = {"pendingUploadId": "1", "pendingUploadType": "TemporaryBlobReference"}
            return 200, answer | {"blobReferenceForConsumption": place}
        if rest == ["versions"]:  # those with this hash
            codes = self.codes.values()
            hashes = [one["properties"]["properties"].get("hash_sha256") for one in codes]
            pairs = zip(codes, hashes, strict=True)
            return 200, {"value": [code for code, found in pairs if found == query["hash"][0]]}
        key = "/".join(parts)
        if method == "PUT":
            self.codes[key] = thing(f"codes/{key}", {}) | body
        elif key not in self.codes:
            return 404, azure_error("UserError", "no such code")
        return 200, self.codes[key]

    def _put_job(self, name, body):
        properties = body["properties"]
        compute = properties["computeId"].rpartition("/")[2]
        why = {
            f"The name {name} is not valid.": not re.fullmatch(r"\w[\w-]{0,254}", name),
            f"The compute target {compute} was not found.": compute != "gpu-cluster",
            "There is no code.": "codes" not in properties["codeId"],
            "Only tags, isArchived and displayName can be changed.": name in self.jobs,
        }
        if said := [text for text, is_so in why.items() if is_so]:
            return 400, azure_error("UserError", said[0])
        created = {"createdAt": dt.datetime.now(dt.timezone.utc).isoformat(), "createdBy": "Ann"}
        studio = {"jobServiceType": "Studio", "endpoint": f"https://ml.azure.com/runs/{name}"}
        properties |= {"status": "Queued", "services": {"Studio": studio}}
        self.jobs[name] = thing(f"jobs/{name}", {}, systemData=created) | body
        return 201, self.jobs[name]

    def blob(self, method, path, query, body, headers):
        """Answer a request to the storage."""
        key, what = unquote(path).lstrip("/"), query.get("comp", [""])[0]
        if method == "PUT" and what == "metadata":
            meta = {name[10:]: headers[name] for name in headers if name.startswith("x-ms-meta-")}
            self.blobs[key] = (self.blobs[key][0], meta)
            return 200, b"", {}
        if method == "PUT" and not what:
            self.blobs[key] = (body, {})
            return 201, b"", {"ETag": '"0x1"', "Last-Modified": _MODIFIED}
        if what == "list":
            return 200, self._list(key, query["prefix"][0]), {"Content-Type": "application/xml"}
        if key not in self.blobs:
            return 404, b"", {"x-ms-error-code": "BlobNotFound"}
        content, metadata = self.blobs[key]
        found = {f"x-ms-meta-{name}": value for name, value in metadata.items()}
        found |= {"x-ms-blob-type": "BlockBlob", "ETag": '"0x1"', "Last-Modified": _MODIFIED}
        asked = headers.get("x-ms-range") or headers.get("Range")
        if not asked or method != "GET":
            return 200, content, found
        first, last = map(int, asked.removeprefix("bytes=").split("-"))
        last = min(last, len(content) - 1)
        found["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        return 206, content[first : last + 1], found

    def _list(self, container, prefix):
        names = sorted(name for name in self.blobs if name.startswith(f"{container}/{prefix}"))
        items = "".join(
            f"<Blob><Name>{name[len(container) + 1 :]}</Name><Properties>"
            f"<Content-Length>{len(self.blobs[name][0])}</Content-Length>"
            f"<Last-Modified>{_MODIFIED}</Last-Modified><Etag>0x1</Etag>"
            "<BlobType>BlockBlob</BlobType></Properties></Blob>"
            for name in names
        )
        head = '<?xml version="1.0" encoding="utf-8"?><EnumerationResults>'
        return f"{head}<Blobs>{items}</Blobs><NextMarker /></EnumerationResults>".encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    host = None

    def do_CONNECT(self):
        host = self.path.partition(":")[0]
        self.send_response(200)
        self.end_headers()
        try:
            self.connection = self.server.context.wrap_socket(self.connection, server_side=True)
        except (ssl.SSLError, OSError):
            self.server.azure.unknown_hosts.append(host)
            self.close_connection = True
            return
        self.rfile = self.connection.makefile("rb", -1)
        self.wfile = self.connection.makefile("wb", 0)
        self.host = host
        self.close_connection = False

    def finish(self):
        super().finish()
        self.connection.close()

    def _answer(self):
        azure, parts = self.server.azure, urlsplit(self.path)
        query = parse_qs(parts.query, keep_blank_values=True)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.host is None:
            self._send(*self._token(query))
            return
        place = f"{self.host}{parts.path}"
        azure.requests.append((self.command, place))
        fault = azure.fault(self.command, place)
        if fault is None or fault.after:
            with azure.lock:
                answer = self._carry_out(azure, parts.path, query, body)
        if fault is not None:
            time.sleep(fault.delay_s)
            answer = fault.status, azure_error(fault.code, fault.message), fault.headers
        if answer[0]:
            self._send(*answer)
        else:
            self.close_connection = True
            self.connection.close()

    do_GET = do_PUT = do_POST = do_HEAD = _answer  # noqa: N815 - names of http.server

    def _token(self, query):
        if self.headers.get("X-IDENTITY-HEADER") != IDENTITY_HEADER:
            return 401, {"error": "no identity"}, {}
        answer = {"access_token": _TOKEN, "expires_on": str(int(time.time() + 3600))}
        answer |= {"resource": query.get("resource", [""])[0], "token_type": "Bearer"}
        return 200, answer, {}

    def _carry_out(self, azure, path, query, body):
        if self.host == BLOBS:
            return azure.blob(self.command, path, query, body, self.headers)
        if self.headers.get("Authorization") != f"Bearer {_TOKEN}":
            said = "The access token expiry UTC time is earlier than current UTC time."
            return 401, azure_error("ExpiredAuthenticationToken", said), {}
        return *azure.arm(self.command, path, query, json.loads(body) if body else None), {}

    def _send(self, status, body, headers):
        content = b"" if body is None else body
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@contextmanager
def azure_standin(folder):
    """Start the stand-in; yield it, and the variables by which the SDK comes to it."""
    certificate = _certificate(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.azure = Azure()
    server.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.context.load_cert_chain(certificate)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    place = f"http://127.0.0.1:{server.server_port}"
    variables = {
        "HTTPS_PROXY": place,
        "NO_PROXY": "127.0.0.1",
        "REQUESTS_CA_BUNDLE": str(certificate),
        "IDENTITY_ENDPOINT": f"{place}/token",
        "IDENTITY_HEADER": IDENTITY_HEADER,
    }
    try:
        yield server.azure, variables
    finally:
        server.shutdown()
        server.server_close()


def _certificate(folder):
    """Write a certificate for the hosts, and its key, into one file; it is trusted by itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "stand-in for Azure")])
    hosts = x509.SubjectAlternativeName([x509.DNSName(host) for host in (ARM, BLOBS)])
    day, now = dt.timedelta(days=1), dt.datetime.now(dt.timezone.utc)
    whose = name, name, key.public_key(), x509.random_serial_number()
    builder = x509.CertificateBuilder(*whose, now - day, now + day)
    builder = builder.add_extension(hosts, critical=False)
    authority = x509.BasicConstraints(ca=True, path_length=None)
    built = builder.add_extension(authority, critical=True).sign(key, hashes.SHA256())
    path = folder / "stand-in.pem"
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, *form)
    path.write_bytes(private + built.public_bytes(serialization.Encoding.PEM))
    return path
