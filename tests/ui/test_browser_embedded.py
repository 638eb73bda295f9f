"""The local AWS emulator against web pages that the user opens.

Starts the emulator, another site and a browser, because only a browser sends requests as web
pages do. Slow, because a browser keeps a core busy.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import boto3
import pytest
from botocore.config import Config

from tests.support.foreign import INTRUDER

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAME = INTRUDER["jobDefinitionName"]
DEFINITION = json.dumps(INTRUDER)
SEND = """async ([url, body, mode]) => {
  const request = {method: "POST", mode, body, headers: {"Content-Type": "text/plain"}};
  try { return (await fetch(url, request)).type; } catch (error) { return "blocked"; }
}"""
READ = """async url => {
  try { return await (await fetch(url)).text(); } catch (error) { return "blocked"; }
}"""
SHOW = """url => new Promise(done => {
  const image = new Image();
  image.onload = () => done("shown");
  image.onerror = () => done("refused");
  image.src = url;
})"""
SUBMIT = """([url, fields, type]) => {
  const form = document.createElement("form");
  Object.assign(form, {method: "POST", action: url, enctype: type});
  for (const [name, value] of Object.entries(fields)) {
    const field = document.createElement("input");
    Object.assign(field, {name, value});
    form.append(field);
  }
  document.body.append(form);
  form.submit();
}"""


class Site(BaseHTTPRequestHandler):
    """An empty page of another origin."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", "15")
        self.end_headers()
        self.wfile.write(b"<!doctype html>")

    def log_message(self, *_):
        """Log nothing."""


@pytest.fixture
def port():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def found(aws):
    """Return the job definitions and users that an intruder has created."""
    definitions = boto3.client("batch").describe_job_definitions(jobDefinitionName=NAME)
    users = boto3.client("iam").list_users()["Users"]
    return definitions["jobDefinitions"], [user["UserName"] for user in users]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1"])
async def test_requests_of_other_origins_are_rejected(aws, browser, port, host):
    """A browser sends such requests without a preflight request."""
    page = await browser.new_page()
    await page.goto(f"http://{host}:{port}/")
    register = f"{aws.endpoint_url}/v1/registerjobdefinition"
    assert "opaque" == await page.evaluate(SEND, [register, DEFINITION, "no-cors"])
    assert "blocked" == await page.evaluate(SEND, [register, DEFINITION, "cors"])
    create = {"Action": "CreateUser", "Version": "2010-05-08", "UserName": NAME}
    form = "application/x-www-form-urlencoded"
    async with page.expect_navigation() as answered:
        await page.evaluate(SUBMIT, [f"{aws.endpoint_url}/", create, form])
    assert 403 == (await answered.value).status
    await page.goto(f"http://{host}:{port}/")
    for path in ("/moto-api/reset", "/_farcall/configure"):
        url = f"{aws.endpoint_url}{path}"
        async with page.expect_response(url) as answered:
            await page.evaluate(SEND, [url, "{}", "no-cors"])
        assert 403 == (await answered.value).status
    await page.close()
    assert ([], []) == found(aws)


async def test_other_origin_cannot_read_objects(aws, browser, port):
    s3 = boto3.client("s3", config=Config(signature_version="s3v4"))
    pixel = b'<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>'
    s3.put_object(
        Bucket="farcall-local",
        Key="picture",
        Body=pixel,
        ACL="public-read",
        ContentType="image/svg+xml",
    )
    asked = {"Bucket": "farcall-local", "Key": "picture"}
    presigned = s3.generate_presigned_url("get_object", Params=asked)
    page = await browser.new_page()
    await page.goto(f"http://evil.example:{port}/")
    for url in (presigned, presigned.partition("?")[0]):
        assert "refused" == await page.evaluate(SHOW, url)
        assert "blocked" == await page.evaluate(READ, url)
    answer = await page.goto(presigned)  # as if the user opens the URL
    assert (200, pixel) == (answer.status, await answer.body())
    await page.close()
