"""A session of boto3 against the server that the environment names (see `.ci/s3-clients`)."""

import hashlib
import json
import os
import tempfile
import threading
import time
import urllib.error
import urllib.request

import boto3
import botocore
from botocore.config import Config
from botocore.exceptions import ClientError

BUCKET = "reports"


def client(key=None, secret=None, **config):
    """A client that does not repeat requests, so that each answer is the first one."""
    settings = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, **config)
    return boto3.client("s3", aws_access_key_id=key, aws_secret_access_key=secret, config=settings)


def refused(code, call, *arguments, **named):
    """The call fails with this code."""
    try:
        call(*arguments, **named)
    except ClientError as error:
        found = error.response["Error"]["Code"]
        assert found == code, f"{found} instead of {code}: {error}"
        return error.response
    raise AssertionError(f"no {code}")


def values(s3):
    """Put, get, head, ranges, metadata, delete."""
    for size in (0, 1, 4096, 65536, 1 << 20, 6 << 20):
        value = os.urandom(size)
        put = s3.put_object(Bucket=BUCKET, Key=f"v/{size}", Body=value, ContentType="a/b", Metadata={"name": "x y"})
        assert put["ETag"].strip('"') == hashlib.md5(value).hexdigest()
        got = s3.get_object(Bucket=BUCKET, Key=f"v/{size}")
        assert got["Body"].read() == value and got["ETag"] == put["ETag"]
        assert got["ContentType"] == "a/b" and got["Metadata"] == {"name": "x y"}
        head = s3.head_object(Bucket=BUCKET, Key=f"v/{size}")
        assert head["ContentLength"] == size and head["LastModified"].tzinfo is not None
        for range_, expected in (("bytes=0-0", value[:1]), ("bytes=-5", value[-5:]), ("bytes=1-", value[1:])):
            if size < 5:
                continue
            part = s3.get_object(Bucket=BUCKET, Key=f"v/{size}", Range=range_)
            assert part["Body"].read() == expected and part["ResponseMetadata"]["HTTPStatusCode"] == 206
    refused("InvalidRange", s3.get_object, Bucket=BUCKET, Key="v/1", Range="bytes=5-")
    refused("NoSuchKey", s3.get_object, Bucket=BUCKET, Key="none")
    refused("404", s3.head_object, Bucket=BUCKET, Key="none")
    for key in ("a b", "a+b", "ä/.././/x", "%25", "\x01", "k" * 1024):
        s3.put_object(Bucket=BUCKET, Key=key, Body=key.encode())
        assert s3.get_object(Bucket=BUCKET, Key=key)["Body"].read() == key.encode(), key
        s3.delete_object(Bucket=BUCKET, Key=key)


def checksums(s3):
    """Checksums of each kind, and a wrong one."""
    for algorithm in ("CRC32", "CRC32C", "SHA1", "SHA256", "CRC64NVME"):
        field = f"Checksum{algorithm}"
        try:
            put = s3.put_object(Bucket=BUCKET, Key="sum", Body=b"123456789", ChecksumAlgorithm=algorithm)
        except (botocore.exceptions.MissingDependencyException, botocore.exceptions.FlexibleChecksumError) as error:
            print(f"  without {algorithm}: {error}")
            continue
        got = s3.get_object(Bucket=BUCKET, Key="sum", ChecksumMode="ENABLED")
        assert got["Body"].read() == b"123456789" and got[field] == put[field], algorithm
        about = s3.get_object_attributes(Bucket=BUCKET, Key="sum", ObjectAttributes=["ETag", "Checksum", "ObjectSize"])
        assert about["Checksum"][field] == put[field] and about["ObjectSize"] == 9
    refused("BadDigest", s3.put_object, Bucket=BUCKET, Key="sum", Body=b"x", ChecksumCRC32="AAAAAA==")
    refused("BadDigest", s3.put_object, Bucket=BUCKET, Key="sum", Body=b"x", ContentMD5="1B2M2Y8AsgTpgAmY7PhCfg==")


def lists(s3):
    """Pages of both versions, delimiters, and deletes of many."""
    keys = [f"list/{folder}/{number:04}" for folder in "abc" for number in range(401)]
    threads = [threading.Thread(target=put_each, args=(s3, keys[start::8])) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for operation in ("list_objects", "list_objects_v2"):
        for size in (1000, 97):
            pages = s3.get_paginator(operation).paginate(Bucket=BUCKET, Prefix="list/", PaginationConfig={"PageSize": size})
            found = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
            assert found == keys, (operation, size, len(found))
        pages = s3.get_paginator(operation).paginate(
            Bucket=BUCKET, Prefix="list/", Delimiter="/", PaginationConfig={"PageSize": 1}
        )
        prefixes = [entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", [])]
        assert prefixes == ["list/a/", "list/b/", "list/c/"], prefixes
    for start in range(0, len(keys), 1000):
        objects = [{"Key": key} for key in keys[start : start + 1000]]
        done = s3.delete_objects(Bucket=BUCKET, Delete={"Objects": objects})
        assert len(done["Deleted"]) == len(objects) and "Errors" not in done
    assert s3.list_objects_v2(Bucket=BUCKET, Prefix="list/")["KeyCount"] == 0


def put_each(s3, keys):
    for key in keys:
        s3.put_object(Bucket=BUCKET, Key=key, Body=key.encode())


def conditions(s3):
    """Conditions, and racers of which one wins."""
    put = s3.put_object(Bucket=BUCKET, Key="c", Body=b"1")
    refused("PreconditionFailed", s3.put_object, Bucket=BUCKET, Key="c", Body=b"2", IfNoneMatch="*")
    refused("PreconditionFailed", s3.put_object, Bucket=BUCKET, Key="c", Body=b"2", IfMatch='"x"')
    refused("NoSuchKey", s3.put_object, Bucket=BUCKET, Key="c2", Body=b"2", IfMatch='"x"')
    s3.put_object(Bucket=BUCKET, Key="c", Body=b"1", IfMatch=put["ETag"])
    refused("304", s3.get_object, Bucket=BUCKET, Key="c", IfNoneMatch=put["ETag"])
    refused("PreconditionFailed", s3.get_object, Bucket=BUCKET, Key="c", IfMatch='"x"')
    refused("PreconditionFailed", s3.delete_object, Bucket=BUCKET, Key="c", IfMatch='"x"')
    wins = []

    def create(number):
        try:
            client().put_object(Bucket=BUCKET, Key="race", Body=str(number).encode(), IfNoneMatch="*")
            wins.append(number)
        except ClientError as error:
            assert error.response["Error"]["Code"] == "PreconditionFailed", error

    threads = [threading.Thread(target=create, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wins) == 1, wins
    assert s3.get_object(Bucket=BUCKET, Key="race")["Body"].read() == str(wins[0]).encode()


def copies(s3):
    """Copies and tags."""
    s3.put_object(Bucket=BUCKET, Key="from", Body=b"value", Metadata={"a": "1"}, Tagging="t=1")
    copied = s3.copy_object(Bucket=BUCKET, Key="to", CopySource={"Bucket": BUCKET, "Key": "from"})
    assert copied["CopyObjectResult"]["ETag"].strip('"') == hashlib.md5(b"value").hexdigest()
    assert s3.head_object(Bucket=BUCKET, Key="to")["Metadata"] == {"a": "1"}
    assert s3.get_object_tagging(Bucket=BUCKET, Key="to")["TagSet"] == [{"Key": "t", "Value": "1"}]
    s3.put_object_tagging(Bucket=BUCKET, Key="to", Tagging={"TagSet": [{"Key": "u", "Value": "2"}]})
    assert s3.get_object_tagging(Bucket=BUCKET, Key="to")["TagSet"] == [{"Key": "u", "Value": "2"}]
    refused("InvalidRequest", s3.copy_object, Bucket=BUCKET, Key="to", CopySource={"Bucket": BUCKET, "Key": "to"})


MIB = 1 << 20


def uploads(s3):
    """Uploads in parts: parts, lists, copies of ranges, checksums, conditions, abort."""
    begun = s3.create_multipart_upload(Bucket=BUCKET, Key="mp", ContentType="a/b", Metadata={"m": "x"})
    named = {"Bucket": BUCKET, "Key": "mp", "UploadId": begun["UploadId"]}
    first, last = os.urandom(5 * MIB), os.urandom(100_000)
    source = os.urandom(6 * MIB)
    s3.put_object(Bucket=BUCKET, Key="mp-source", Body=source)
    parts = {3: s3.upload_part(PartNumber=3, Body=last, **named), 1: s3.upload_part(PartNumber=1, Body=first, **named)}
    copied = s3.upload_part_copy(
        PartNumber=2, CopySource={"Bucket": BUCKET, "Key": "mp-source"}, CopySourceRange=f"bytes=1-{5 * MIB}", **named
    )
    parts[2] = copied["CopyPartResult"]
    listed = s3.list_parts(**named)["Parts"]
    assert [(part["PartNumber"], part["Size"]) for part in listed] == [(1, 5 * MIB), (2, 5 * MIB), (3, 100_000)]
    pages = s3.get_paginator("list_parts").paginate(PaginationConfig={"PageSize": 1}, **named)
    assert [part["ETag"] for page in pages for part in page["Parts"]] == [parts[number]["ETag"] for number in (1, 2, 3)]
    found = s3.list_multipart_uploads(Bucket=BUCKET)["Uploads"]
    assert [(upload["Key"], upload["UploadId"]) for upload in found] == [("mp", begun["UploadId"])]

    def complete(numbers, **more):
        asked = [{"PartNumber": number, "ETag": parts[number]["ETag"]} for number in numbers]
        return s3.complete_multipart_upload(MultipartUpload={"Parts": asked}, **named, **more)

    refused("InvalidPartOrder", complete, (3, 1))
    s3.put_object(Bucket=BUCKET, Key="mp", Body=b"old")
    refused("PreconditionFailed", complete, (1, 2, 3), IfNoneMatch="*")
    done = complete((1, 2, 3))
    value = first + source[1 : 5 * MIB + 1] + last
    sums = b"".join(hashlib.md5(part).digest() for part in (first, source[1 : 5 * MIB + 1], last))
    assert done["ETag"].strip('"') == hashlib.md5(sums).hexdigest() + "-3", done["ETag"]
    assert complete((1, 2, 3))["ETag"] == done["ETag"], "a repetition"
    got = s3.get_object(Bucket=BUCKET, Key="mp")
    assert got["Body"].read() == value and got["ContentType"] == "a/b" and got["Metadata"] == {"m": "x"}
    part = s3.get_object(Bucket=BUCKET, Key="mp", PartNumber=2)
    assert part["PartsCount"] == 3 and part["Body"].read() == source[1 : 5 * MIB + 1]
    assert s3.head_object(Bucket=BUCKET, Key="mp", PartNumber=3)["ContentLength"] == 100_000
    about = s3.get_object_attributes(Bucket=BUCKET, Key="mp", ObjectAttributes=["ObjectParts", "ObjectSize"])
    assert about["ObjectParts"]["TotalPartsCount"] == 3 and about["ObjectSize"] == len(value)
    refused("NoSuchUpload", s3.upload_part, PartNumber=1, Body=b"", **named)
    s3.copy_object(Bucket=BUCKET, Key="mp-copy", CopySource={"Bucket": BUCKET, "Key": "mp"})
    assert s3.get_object(Bucket=BUCKET, Key="mp-copy")["Body"].read() == value
    begun = s3.create_multipart_upload(Bucket=BUCKET, Key="mp-gone")
    named = {"Bucket": BUCKET, "Key": "mp-gone", "UploadId": begun["UploadId"]}
    s3.upload_part(PartNumber=1, Body=first, **named)
    s3.abort_multipart_upload(**named)
    refused("NoSuchUpload", s3.list_parts, **named)
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=BUCKET)


def large_files(s3):
    """A file of 100 MiB by the transfer manager: up, copied in parts, ranges, down."""
    block = os.urandom(MIB)
    value = b"".join(bytes([number]) + block[1:] for number in range(100))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "large")
        with open(path, "wb") as file:
            file.write(value)
        s3.upload_file(path, BUCKET, "large")
        head = s3.head_object(Bucket=BUCKET, Key="large")
        assert head["ContentLength"] == len(value) and head["ETag"].endswith('-13"'), head["ETag"]
        for start in (0, 8 * MIB - 1, 50 * MIB, len(value) - 10):
            got = s3.get_object(Bucket=BUCKET, Key="large", Range=f"bytes={start}-{start + 99_999}")
            assert got["Body"].read() == value[start : start + 100_000], start
        s3.copy({"Bucket": BUCKET, "Key": "large"}, BUCKET, "large-copy")
        s3.download_file(BUCKET, "large-copy", path)
        with open(path, "rb") as file:
            assert file.read() == value
        for algorithm in ("CRC32", "SHA256"):
            s3.upload_file(path, BUCKET, "large", ExtraArgs={"ChecksumAlgorithm": algorithm})
            with open(path, "wb") as file:
                s3.download_fileobj(BUCKET, "large", file, ExtraArgs={"ChecksumMode": "ENABLED"})
            with open(path, "rb") as file:
                assert file.read() == value, algorithm


def post(form, file):
    """Posts a form of `generate_presigned_post`; the status of the answer."""
    boundary = "b" * 30
    fields = "".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in form["fields"].items()
    )
    start = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="f.txt"\r\n\r\n'
    body = (fields + start).encode() + file + f"\r\n--{boundary}--\r\n".encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}", "Origin": "https://page.example.org"}
    try:
        return urllib.request.urlopen(urllib.request.Request(form["url"], data=body, headers=headers)).status
    except urllib.error.HTTPError as error:
        return error.code


def forms(s3):
    """Forms of browsers."""
    form = client(signature_version="s3v4").generate_presigned_post(
        BUCKET, "form/${filename}", Conditions=[["content-length-range", 1, 100]], ExpiresIn=60
    )
    assert post(form, b"posted") == 204
    assert s3.get_object(Bucket=BUCKET, Key="form/f.txt")["Body"].read() == b"posted"
    assert post(form, b"x" * 101) == 400
    form["fields"]["acl"] = "public-read"
    assert post(form, b"posted") == 403, "a field that the policy does not name"


def pages(s3):
    """Rules for pages of other origins."""
    refused("NoSuchCORSConfiguration", s3.get_bucket_cors, Bucket=BUCKET)
    rule = {"AllowedOrigins": ["https://*.example.org"], "AllowedMethods": ["GET", "PUT"], "MaxAgeSeconds": 60}
    s3.put_bucket_cors(Bucket=BUCKET, CORSConfiguration={"CORSRules": [rule]})
    assert s3.get_bucket_cors(Bucket=BUCKET)["CORSRules"] == [rule]
    url = client(signature_version="s3v4").generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": "p"})
    for method, headers in (("OPTIONS", {"Access-Control-Request-Method": "PUT"}), ("GET", {})):
        headers["Origin"] = "https://a.example.org"
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers, method=method))
        assert answer.headers["Access-Control-Allow-Origin"] == "https://a.example.org", method
    s3.delete_bucket_cors(Bucket=BUCKET)


def acls(s3):
    """Canned ACLs, and the blocks of public access."""
    s3.put_object(Bucket=BUCKET, Key="public", Body=b"seen", ACL="public-read")
    s3.put_object(Bucket=BUCKET, Key="private", Body=b"hidden")
    base = f"{s3.meta.endpoint_url}/{BUCKET}"
    assert urllib.request.urlopen(f"{base}/public").read() == b"seen"
    assert status(f"{base}/private") == 403 and status(base) == 403
    assert len(s3.get_object_acl(Bucket=BUCKET, Key="public")["Grants"]) == 2
    s3.put_bucket_acl(Bucket=BUCKET, ACL="public-read")
    assert status(base) == 200
    block = {"BlockPublicAcls": True, "IgnorePublicAcls": True, "BlockPublicPolicy": False, "RestrictPublicBuckets": False}
    s3.put_public_access_block(Bucket=BUCKET, PublicAccessBlockConfiguration=block)
    assert s3.get_public_access_block(Bucket=BUCKET)["PublicAccessBlockConfiguration"] == block
    assert status(base) == 403 and status(f"{base}/public") == 403
    refused("AccessDenied", s3.put_object_acl, Bucket=BUCKET, Key="private", ACL="public-read")
    s3.delete_public_access_block(Bucket=BUCKET)
    s3.put_object_acl(Bucket=BUCKET, Key="public", ACL="private")
    assert status(f"{base}/public") == 403
    s3.put_bucket_acl(Bucket=BUCKET, ACL="private")
    controls = {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}
    s3.put_bucket_ownership_controls(Bucket=BUCKET, OwnershipControls=controls)
    assert s3.get_bucket_ownership_controls(Bucket=BUCKET)["OwnershipControls"] == controls
    refused("AccessControlListNotSupported", s3.put_object, Bucket=BUCKET, Key="p3", Body=b"", ACL="public-read")
    s3.delete_bucket_ownership_controls(Bucket=BUCKET)


def policies(s3):
    """A policy that lets everybody read a prefix."""
    refused("NoSuchBucketPolicy", s3.get_bucket_policy, Bucket=BUCKET)
    s3.put_object(Bucket=BUCKET, Key="open/k", Body=b"seen")
    allow = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{BUCKET}/open/*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allow]})
    s3.put_bucket_policy(Bucket=BUCKET, Policy=policy)
    assert json.loads(s3.get_bucket_policy(Bucket=BUCKET)["Policy"]) == json.loads(policy)
    assert s3.get_bucket_policy_status(Bucket=BUCKET)["PolicyStatus"]["IsPublic"]
    base = f"{s3.meta.endpoint_url}/{BUCKET}"
    assert urllib.request.urlopen(f"{base}/open/k").read() == b"seen" and status(f"{base}/private") == 403
    s3.delete_bucket_policy(Bucket=BUCKET)
    assert status(f"{base}/open/k") == 403


def access(s3):
    """Presigned URLs, a wrong key, a wrong secret, no signature, grants."""
    s3.put_object(Bucket=BUCKET, Key="p", Body=b"presigned")
    signer = client(signature_version="s3v4")
    url = signer.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": "p"}, ExpiresIn=60)
    assert urllib.request.urlopen(url).read() == b"presigned"
    assert status(url.replace("/p?", "/q?")) == 403
    assert status(url.split("?")[0]) == 403, "no signature"
    assert status(url.replace("127.0.0.1", "localhost")) == 403, "another host"
    short = signer.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": "p"}, ExpiresIn=1)
    time.sleep(2.1)
    assert status(short) == 403, "expired"
    put = signer.generate_presigned_url("put_object", Params={"Bucket": BUCKET, "Key": "p2"}, ExpiresIn=60)
    request = urllib.request.Request(put, data=b"new", method="PUT")
    assert urllib.request.urlopen(request).status == 200
    assert s3.get_object(Bucket=BUCKET, Key="p2")["Body"].read() == b"new"
    key, secret = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    refused("SignatureDoesNotMatch", client(key, secret[::-1]).get_object, Bucket=BUCKET, Key="p")
    refused("InvalidAccessKeyId", client("SHKAAAAAAAAAAAAAAAAA", secret).get_object, Bucket=BUCKET, Key="p")
    clerk = client(os.environ["SHOAL_CLERK_ID"], os.environ["SHOAL_CLERK_SECRET"])
    clerk.put_object(Bucket=BUCKET, Key="in/k", Body=b"1")
    assert clerk.list_objects_v2(Bucket=BUCKET, Prefix="in/")["KeyCount"] == 1
    refused("AccessDenied", clerk.get_object, Bucket=BUCKET, Key="p")
    refused("AccessDenied", clerk.delete_object, Bucket=BUCKET, Key="in/k")
    refused("AccessDenied", clerk.list_objects_v2, Bucket=BUCKET)


def lifecycle(s3):
    """Lifecycle rules."""
    refused("NoSuchLifecycleConfiguration", s3.get_bucket_lifecycle_configuration, Bucket=BUCKET)
    rules = [
        {"ID": "tmp", "Status": "Enabled", "Filter": {"Prefix": "tmp/"}, "Expiration": {"Days": 7}},
        {
            "ID": "uploads",
            "Status": "Disabled",
            "Filter": {"And": {"Prefix": "u/", "Tags": [{"Key": "k", "Value": "v"}], "ObjectSizeLessThan": 9}},
            "Expiration": {"Days": 2},
        },
        {"ID": "abort", "Status": "Enabled", "Filter": {"Prefix": "a"}, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}},
    ]
    s3.put_bucket_lifecycle_configuration(Bucket=BUCKET, LifecycleConfiguration={"Rules": rules})
    assert s3.get_bucket_lifecycle_configuration(Bucket=BUCKET)["Rules"] == rules
    put = s3.put_object(Bucket=BUCKET, Key="tmp/k", Body=b"1")
    for answer in (put, s3.head_object(Bucket=BUCKET, Key="tmp/k"), s3.get_object(Bucket=BUCKET, Key="tmp/k")):
        assert 'rule-id="tmp"' in answer["Expiration"] and answer["Expiration"] == put["Expiration"]
    assert "Expiration" not in s3.put_object(Bucket=BUCKET, Key="u/k", Body=b"1")
    rules[0]["NoncurrentVersionExpiration"] = {"NoncurrentDays": 1}
    call = s3.put_bucket_lifecycle_configuration
    refused("NotImplemented", call, Bucket=BUCKET, LifecycleConfiguration={"Rules": rules})
    s3.delete_bucket_lifecycle(Bucket=BUCKET)
    refused("NoSuchLifecycleConfiguration", s3.get_bucket_lifecycle_configuration, Bucket=BUCKET)


def website(s3):
    """A website."""
    refused("NoSuchWebsiteConfiguration", s3.get_bucket_website, Bucket=BUCKET)
    site = {"IndexDocument": {"Suffix": "index.html"}, "ErrorDocument": {"Key": "lost.html"}}
    s3.put_bucket_website(Bucket=BUCKET, WebsiteConfiguration=site)
    found = s3.get_bucket_website(Bucket=BUCKET)
    assert {name: found[name] for name in site} == site
    for key in ("w/index.html", "lost.html"):
        s3.put_object(Bucket=BUCKET, Key=key, Body=key.encode(), ContentType="text/html", ACL="public-read")
    page = urllib.request.Request(f"{s3.meta.endpoint_url}/w/", headers={"Host": f"{BUCKET}.web.test"})
    answer = urllib.request.urlopen(page)
    assert answer.read() == b"w/index.html" and answer.headers["Content-Type"] == "text/html"
    page.full_url = f"{s3.meta.endpoint_url}/none"
    try:
        urllib.request.urlopen(page)
        raise AssertionError("no error")
    except urllib.error.HTTPError as error:
        assert error.code == 403 and error.read() == b"lost.html"
    s3.delete_bucket_website(Bucket=BUCKET)


def status(url):
    try:
        return urllib.request.urlopen(url).status
    except urllib.error.HTTPError as error:
        return error.code


def main():
    s3 = client()
    refused("NoSuchBucket", s3.put_object, Bucket=BUCKET, Key="k", Body=b"")
    s3.create_bucket(Bucket=BUCKET)
    s3.head_bucket(Bucket=BUCKET)
    assert BUCKET in [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]
    assert s3.get_bucket_location(Bucket=BUCKET)["LocationConstraint"] is None
    for part in (values, checksums, lists, conditions, copies, uploads, large_files, access, forms, pages, acls, policies, lifecycle, website):
        part(s3)
        print(f"  {part.__doc__}")
    refused("BucketNotEmpty", s3.delete_bucket, Bucket=BUCKET)
    left = [entry["Key"] for entry in s3.list_objects_v2(Bucket=BUCKET).get("Contents", [])]
    s3.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": key} for key in left], "Quiet": True})
    s3.delete_bucket(Bucket=BUCKET)
    refused("404", s3.head_bucket, Bucket=BUCKET)
    print(f"boto3 {boto3.__version__}: all of the session")


main()
