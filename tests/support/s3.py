"""A real S3 server in tests: moto's, as a process."""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import obstore
from obstore.store import S3Store

from support.processes import wait_for

REGION = "eu-central-1"


class S3:
    """A running server."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.environment = {
            "AWS_ENDPOINT_URL": url,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }

    def make_bucket(self, name: str, files: Mapping[str, bytes]) -> S3Store:
        """A bucket with some files; those of more than 5 MiB are uploaded in parts of that size."""
        location = f"<CreateBucketConfiguration><LocationConstraint>{REGION}"
        location += "</LocationConstraint></CreateBucketConfiguration>"
        self._call("PUT", f"/{name}", location.encode())
        store = S3Store(
            name,
            endpoint=self.url,
            region=REGION,
            access_key_id="key",
            secret_access_key="secret",
            client_options={"allow_http": True},
        )
        for path, content in files.items():
            obstore.put(store, path, content, use_multipart=len(content) > 5 << 20)
        return store

    def make_user(self) -> dict[str, str]:
        """Somebody who may read all buckets; the keys, as the environment has them."""
        self._iam(Action="CreateUser", UserName="reader")
        read = {"Effect": "Allow", "Action": ["s3:GetObject", "s3:ListBucket"], "Resource": "*"}
        document = json.dumps({"Version": "2012-10-17", "Statement": [read]})
        policy = {"UserName": "reader", "PolicyName": "read", "PolicyDocument": document}
        self._iam(Action="PutUserPolicy", **policy)
        answer = self._iam(Action="CreateAccessKey", UserName="reader")
        tags = {"AWS_ACCESS_KEY_ID": "AccessKeyId", "AWS_SECRET_ACCESS_KEY": "SecretAccessKey"}
        found = {name: re.search(f"<{tag}>([^<]+)<", answer) for name, tag in tags.items()}
        return {name: match[1] for name, match in found.items() if match}

    def ask_for_keys(self, asked: bool) -> None:
        """Refuses all requests from now on, but those of users."""
        self._call("POST", "/moto-api/reset-auth", b"0" if asked else b"inf")

    def _iam(self, **query: str) -> str:
        signed = "Credential=key/20260101/us-east-1/iam/aws4_request, SignedHeaders=host"
        headers = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Authorization": f"AWS4-HMAC-SHA256 {signed}, Signature=0",
        }
        body = urllib.parse.urlencode(query | {"Version": "2010-05-08"}).encode()
        request = urllib.request.Request(self.url, body, headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            return str(response.read().decode())

    def _call(self, method: str, path: str, body: bytes) -> None:
        headers = {"Content-Type": "text/plain"}
        request = urllib.request.Request(self.url + path, body, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as response:
            assert response.status == 200


@contextlib.contextmanager
def running_s3(host: str = "127.0.0.1") -> Iterator[S3]:
    """A server that serves at an address of this machine while the block runs."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with log.open("w") as output:
            command = [sys.executable, "-m", "moto.server", "-H", host, "-p", "0"]
            environment = os.environ | {"PYTHONUNBUFFERED": "1"}
            process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:

            def url() -> str | None:
                assert process.poll() is None, log.read_text()
                found = re.search(rf"Running on (http://{re.escape(host)}:\d+)", log.read_text())
                return found and found[1]

            yield S3(wait_for(url))
        finally:
            process.terminate()
            process.wait(30)
