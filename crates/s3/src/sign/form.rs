//! POST forms: the policy that somebody signed for a browser, and its judgement on the fields of a form.
//!
//! The signature is that of the policy in its base64 form. Each field must be named by a condition, except those of the
//! signature, checksums, which can only make a form fail, and `x-ignore-` fields: a form cannot carry more than its policy allows.

use std::ops::RangeInclusive;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::canonical::ALGORITHM;
use super::key::{Scope, SecretPair, SecretSource, SigningKeys, is_signature};
use crate::body::checksum::ChecksumAlgorithm;
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::text::unhex;
use crate::time::parse_iso;

/// Longest policy of a form, in bytes of base64: the fields before the file have as many.
pub const FORM_POLICY_BYTES_MAX: usize = 20 << 10;

/// The fields of a form before its file: names in lower case, each once, and values.
pub type FormFields = [(String, String)];

/// A form that its policy allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifiedForm {
    /// The id of the key that signed; `None` for a form without a policy, whose sender is anonymous.
    pub id: Option<String>,
    /// The lengths of file that are allowed, in bytes.
    pub file_bytes: RangeInclusive<u64>,
}

/// The value of a field of a form.
#[must_use]
pub fn form_field<'a>(fields: &'a FormFields, name: &str) -> Option<&'a str> {
    fields.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
}

/// Verifies signature and policy of a form that is sent to `bucket`.
///
/// # Errors
/// 403 for a wrong signature, an expired policy and a condition that does not hold; 400 for a malformed form.
pub fn verify_form(
    fields: &FormFields,
    bucket: &str,
    keys: &SigningKeys,
    secrets: &dyn SecretSource,
    now_s: u64,
) -> S3Result<VerifiedForm> {
    let Some(policy) = form_field(fields, "policy") else {
        return Ok(VerifiedForm { id: None, file_bytes: 0..=u64::MAX });
    };
    let id = check_signature(fields, policy, keys, secrets)?;
    let invalid =
        |why: &str| S3Error::new(ErrorCode::InvalidPolicyDocument, format!("Invalid Policy: {why}."));
    if policy.len() > FORM_POLICY_BYTES_MAX {
        return Err(invalid("it is too long"));
    }
    let json = STANDARD.decode(policy).map_err(|_| invalid("it is not base64"))?;
    let json: Value = serde_json::from_slice(&json).map_err(|_| invalid("it is not JSON"))?;
    let expiration = json.get("expiration").and_then(Value::as_str).and_then(parse_iso);
    let expiration = expiration.ok_or_else(|| invalid("expiration is missing or no date"))?;
    let conditions =
        json.get("conditions").and_then(Value::as_array).ok_or_else(|| invalid("conditions are missing"))?;
    let conditions = conditions.iter().map(FormCondition::parse_each).collect::<Option<Vec<_>>>();
    let conditions = conditions.ok_or_else(|| invalid("a condition is malformed"))?.concat();
    if now_s >= expiration {
        return Err(denied("Policy expired."));
    }
    let file_bytes = judge(&conditions, fields, bucket)?;
    Ok(VerifiedForm { id: Some(id), file_bytes })
}

/// The id of the key that signed the policy.
fn check_signature(
    fields: &FormFields,
    policy: &str,
    keys: &SigningKeys,
    secrets: &dyn SecretSource,
) -> S3Result<String> {
    if form_field(fields, "awsaccesskeyid").is_some() {
        return Err(S3Error::new(
            ErrorCode::InvalidRequest,
            "Signature version 2 is not supported. Please use version 4 (aws-cli: s3.signature_version s3v4).",
        ));
    }
    let field = |name: &str| {
        let why = format!("A form with a policy must have the field {name}.");
        form_field(fields, name).ok_or_else(|| S3Error::argument(name, "", why))
    };
    if field("x-amz-algorithm")? != ALGORITHM {
        return Err(S3Error::argument("x-amz-algorithm", "", format!("It must be {ALGORITHM}.")));
    }
    let (credential, date) = (field("x-amz-credential")?, field("x-amz-date")?);
    let signature = unhex(field("x-amz-signature")?.as_bytes()).ok_or(ErrorCode::SignatureDoesNotMatch)?;
    let scope =
        Scope::parse(credential).filter(|scope| scope.service == "s3" && scope.region == keys.region());
    let scope = scope.filter(|scope| date.starts_with(&format!("{}T", scope.date)));
    let scope =
        scope.ok_or_else(|| S3Error::argument("x-amz-credential", credential, "The scope is wrong."))?;
    let pair: SecretPair = secrets.secrets(scope.id);
    // A policy may be years old, so its signing key is not cached.
    let mut is_right = false;
    for secret in pair.iter().flatten() {
        is_right |= is_signature(&keys.derive(scope.date, secret), policy.as_bytes(), &signature);
    }
    if pair.iter().all(Option::is_none) {
        let _ = keys.derive(scope.date, "");
        return Err(S3Error::from(ErrorCode::InvalidAccessKeyId).with("AWSAccessKeyId", scope.id));
    }
    if is_right { Ok(scope.id.to_owned()) } else { Err(ErrorCode::SignatureDoesNotMatch.into()) }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum FormCondition {
    Equals(String, String),
    StartsWith(String, String),
    FileBytes(u64, u64),
}

impl FormCondition {
    /// The conditions of one element of the list: an object has one for each of its pairs.
    fn parse_each(value: &Value) -> Option<Vec<Self>> {
        match value {
            Value::Object(pairs) if !pairs.is_empty() => pairs
                .iter()
                .map(|(name, value)| {
                    Some(Self::Equals(name.to_ascii_lowercase(), value.as_str()?.to_owned()))
                })
                .collect(),
            Value::Array(parts) => match parts.as_slice() {
                [Value::String(kind), first, second] => Self::parse(kind, first, second).map(|one| vec![one]),
                _ => None,
            },
            _ => None,
        }
    }

    fn parse(kind: &str, first: &Value, second: &Value) -> Option<Self> {
        let kind = kind.to_ascii_lowercase();
        if kind == "content-length-range" {
            let number = |value: &Value| value.as_u64().or_else(|| value.as_str()?.parse().ok());
            return Some(Self::FileBytes(number(first)?, number(second)?));
        }
        let name = first.as_str()?.strip_prefix('$')?.to_ascii_lowercase();
        let value = second.as_str()?.to_owned();
        match kind.as_str() {
            "eq" => Some(Self::Equals(name, value)),
            "starts-with" => Some(Self::StartsWith(name, value)),
            _ => None,
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Equals(name, _) | Self::StartsWith(name, _) => name,
            Self::FileBytes(..) => "",
        }
    }
}

/// Judges all conditions, and that they cover all fields. Returns the lengths of file that are allowed.
fn judge(conditions: &[FormCondition], fields: &FormFields, bucket: &str) -> S3Result<RangeInclusive<u64>> {
    let value_of = |name: &str| if name == "bucket" { Some(bucket) } else { form_field(fields, name) };
    let (mut least, mut most) = (0, u64::MAX);
    for condition in conditions {
        let holds = match condition {
            FormCondition::Equals(name, wanted) => value_of(name) == Some(wanted.as_str()),
            FormCondition::StartsWith(name, start) => {
                value_of(name).unwrap_or("").starts_with(start.as_str())
            }
            FormCondition::FileBytes(from, to) => {
                least = least.max(*from);
                most = most.min(*to);
                true
            }
        };
        if !holds {
            return Err(denied(&format!("Policy Condition failed: {}", condition.name())));
        }
    }
    let is_exempt = |name: &str| {
        let is_checksum = ChecksumAlgorithm::ALL.iter().any(|algorithm| name == algorithm.header());
        is_checksum || matches!(name, "policy" | "x-amz-signature") || name.starts_with("x-ignore-")
    };
    let names =
        fields.iter().map(|(name, _)| name.as_str()).filter(|name| !is_exempt(name)).chain(["bucket"]);
    for name in names {
        if !conditions.iter().any(|condition| condition.name() == name) {
            return Err(denied(&format!("Extra input fields: {name}")));
        }
    }
    Ok(least..=most)
}

fn denied(why: &str) -> S3Error {
    S3Error::new(ErrorCode::AccessDenied, format!("Invalid according to Policy: {why}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sign::vectors::secrets;
    use crate::text::hex;
    use crate::time::parse_basic;

    /// The published example; it expires on 2015-12-30.
    const POLICY: &str = "eyAiZXhwaXJhdGlvbiI6ICIyMDE1LTEyLTMwVDEyOjAwOjAwLjAwMFoiLA0KICAiY29uZGl0aW9ucyI6IFsNCiAgICB7ImJ1Y2tldCI6ICJzaWd2NGV4YW1wbGVidWNrZXQifSwNCiAgICBbInN0YXJ0cy13aXRoIiwgIiRrZXkiLCAidXNlci91c2VyMS8iXSwNCiAgICB7ImFjbCI6ICJwdWJsaWMtcmVhZCJ9LA0KICAgIHsic3VjY2Vzc19hY3Rpb25fcmVkaXJlY3QiOiAiaHR0cDovL3NpZ3Y0ZXhhbXBsZWJ1Y2tldC5zMy5hbWF6b25hd3MuY29tL3N1Y2Nlc3NmdWxfdXBsb2FkLmh0bWwifSwNCiAgICBbInN0YXJ0cy13aXRoIiwgIiRDb250ZW50LVR5cGUiLCAiaW1hZ2UvIl0sDQogICAgeyJ4LWFtei1tZXRhLXV1aWQiOiAiMTQzNjUxMjM2NTEyNzQifSwNCiAgICB7IngtYW16LXNlcnZlci1zaWRlLWVuY3J5cHRpb24iOiAiQUVTMjU2In0sDQogICAgWyJzdGFydHMtd2l0aCIsICIkeC1hbXotbWV0YS10YWciLCAiIl0sDQoNCiAgICB7IngtYW16LWNyZWRlbnRpYWwiOiAiQUtJQUlPU0ZPRE5ON0VYQU1QTEUvMjAxNTEyMjkvdXMtZWFzdC0xL3MzL2F3czRfcmVxdWVzdCJ9LA0KICAgIHsieC1hbXotYWxnb3JpdGhtIjogIkFXUzQtSE1BQy1TSEEyNTYifSwNCiAgICB7IngtYW16LWRhdGUiOiAiMjAxNTEyMjlUMDAwMDAwWiIgfQ0KICBdDQp9";

    fn published() -> Vec<(String, String)> {
        [
            ("policy", POLICY),
            ("key", "user/user1/cat.jpg"),
            ("acl", "public-read"),
            ("success_action_redirect", "http://sigv4examplebucket.s3.amazonaws.com/successful_upload.html"),
            ("content-type", "image/jpeg"),
            ("x-amz-meta-uuid", "14365123651274"),
            ("x-amz-server-side-encryption", "AES256"),
            ("x-amz-credential", "AKIAIOSFODNN7EXAMPLE/20151229/us-east-1/s3/aws4_request"),
            ("x-amz-algorithm", "AWS4-HMAC-SHA256"),
            ("x-amz-date", "20151229T000000Z"),
            ("x-amz-signature", "8afdbf4008c03f22c2cd3cdb72e4afbb1f6a588f3255ac628749a66d7f09699e"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
    }

    fn check(fields: &FormFields, bucket: &str, date: &str) -> S3Result<VerifiedForm> {
        verify_form(fields, bucket, &SigningKeys::new("us-east-1"), &secrets, parse_basic(date).unwrap())
    }

    /// The verdict on a form with the field `key`, and `field`, under a policy of these conditions.
    fn judge_by(conditions: &str, field: (&str, &str)) -> Result<RangeInclusive<u64>, ErrorCode> {
        let scope = "AKIAIOSFODNN7EXAMPLE/20151229/us-east-1/s3/aws4_request";
        let policy = STANDARD.encode(format!(
            r#"{{"expiration":"2015-12-30T12:00:00Z","conditions":[["eq","$x-amz-algorithm","AWS4-HMAC-SHA256"],
            ["starts-with","$x-amz-credential",""],["starts-with","$x-amz-date",""],{conditions}]}}"#
        ));
        let secret = secrets("AKIAIOSFODNN7EXAMPLE")[0].clone().unwrap();
        let key = SigningKeys::new("us-east-1").derive("20151229", &secret);
        let signature = hex(ring::hmac::sign(&key, policy.as_bytes()).as_ref());
        let fields = [
            ("policy", policy.as_str()),
            ("x-amz-algorithm", ALGORITHM),
            ("x-amz-credential", scope),
            ("x-amz-date", "20151229T000000Z"),
            ("x-amz-signature", &signature),
            ("key", "foo/bar"),
            field,
        ];
        let fields: Vec<(String, String)> = fields
            .iter()
            .filter(|(name, _)| !name.is_empty())
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect();
        check(&fields, "b", "20151229T000000Z").map(|form| form.file_bytes).map_err(|error| error.code)
    }

    #[test]
    fn the_published_form_is_accepted_until_its_policy_expires() {
        let form = check(&published(), "sigv4examplebucket", "20151229T000000Z").unwrap();
        assert_eq!(form.id.as_deref(), Some("AKIAIOSFODNN7EXAMPLE"));
        for (bucket, date) in [("other", "20151229T000000Z"), ("sigv4examplebucket", "20151230T120000Z")] {
            assert_eq!(
                check(&published(), bucket, date).unwrap_err().code,
                ErrorCode::AccessDenied,
                "{bucket} {date}"
            );
        }
        let without =
            |name: &str| -> Vec<_> { published().into_iter().filter(|(found, _)| found != name).collect() };
        assert_eq!(check(&without("policy"), "b", "20151229T000000Z").unwrap().id, None);
        for (name, code) in [
            ("x-amz-signature", ErrorCode::InvalidArgument),
            ("x-amz-credential", ErrorCode::InvalidArgument),
            ("acl", ErrorCode::AccessDenied),
        ] {
            let error = check(&without(name), "sigv4examplebucket", "20151229T000000Z").unwrap_err();
            assert_eq!(error.code, code, "{name}");
        }
        let mut changed = published();
        changed[0].1 = changed[0].1.replacen("LTEyLTMw", "LTEyLTMx", 1);
        assert_eq!(
            check(&changed, "sigv4examplebucket", "20151229T000000Z").unwrap_err().code,
            ErrorCode::SignatureDoesNotMatch
        );
    }

    #[test]
    fn every_condition_must_hold_and_every_field_be_covered() {
        let both = r#"{"bUcKeT":"b"},["StArTs-WiTh","$KeY","foo/"]"#;
        for (conditions, field, expected) in [
            (both, ("", ""), Ok(0..=u64::MAX)),
            (both, ("x-ignore-a", "1"), Ok(0..=u64::MAX)),
            (both, ("x-amz-checksum-sha256", "x"), Ok(0..=u64::MAX)),
            (both, ("x-amz-checksum-other", "x"), Err(ErrorCode::AccessDenied)),
            (both, ("content-type", "text/plain"), Err(ErrorCode::AccessDenied)),
            (r#"["starts-with","$key",""]"#, ("", ""), Err(ErrorCode::AccessDenied)),
            (r#"{"bucket":"b"},["eq","$key","foo"]"#, ("", ""), Err(ErrorCode::AccessDenied)),
            (
                r#"{"bucket":"b","key":"foo/bar"},["content-length-range",1,9],["content-length-range","0","5"]"#,
                ("", ""),
                Ok(1..=5),
            ),
            (
                r#"{"bucket":"b"},["content-length-range",-1,9]"#,
                ("", ""),
                Err(ErrorCode::InvalidPolicyDocument),
            ),
            (r#"{"bucket":"b"},["content-length-range",1]"#, ("", ""), Err(ErrorCode::InvalidPolicyDocument)),
            (r#"{"bucket":"b"},["like","$key","foo"]"#, ("", ""), Err(ErrorCode::InvalidPolicyDocument)),
            (r"{}", ("", ""), Err(ErrorCode::InvalidPolicyDocument)),
            (r#"{"bucket":1}"#, ("", ""), Err(ErrorCode::InvalidPolicyDocument)),
        ] {
            assert_eq!(judge_by(conditions, field), expected, "{conditions} {field:?}");
        }
    }

    proptest! {
        #[test]
        fn any_conditions_are_judged_or_refused(conditions: String, name: String, value: String) {
            let _ = judge_by(&conditions, (&name, &value));
        }
    }
}
