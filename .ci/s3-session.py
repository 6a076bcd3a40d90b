"""A session of boto3 against the server that the environment names (see `.ci/s3-clients`)."""

import hashlib
import os
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
    refused("NotImplemented", s3.create_multipart_upload, Bucket=BUCKET, Key="k")
    for part in (values, checksums, lists, conditions, copies, access):
        part(s3)
        print(f"  {part.__doc__}")
    refused("BucketNotEmpty", s3.delete_bucket, Bucket=BUCKET)
    left = [entry["Key"] for entry in s3.list_objects_v2(Bucket=BUCKET).get("Contents", [])]
    s3.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": key} for key in left], "Quiet": True})
    s3.delete_bucket(Bucket=BUCKET)
    refused("404", s3.head_bucket, Bucket=BUCKET)
    print(f"boto3 {boto3.__version__}: all of the session")


main()
