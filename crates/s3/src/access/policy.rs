//! Bucket policies: a subset, of which everything else is refused by its name when a policy is set, and never ignored.
//!
//! | element | accepted |
//! |---|---|
//! | Version, Id, Sid | known versions, any text |
//! | Effect | Allow, Deny |
//! | Principal | `*`, `{"AWS": …}` with `*` or ids of keys |
//! | Action | S3's names of operations with a row, `s3:*`, a star at the end |
//! | Resource | `arn:aws:s3:::BUCKET`, followed by `/` and a pattern of `*` and `?` |
//! | Condition | IpAddress and NotIpAddress of aws:SourceIp, Bool of aws:SecureTransport, StringEquals and StringLike of s3:prefix |

use std::net::IpAddr;

use serde_json::{Map, Value};

use super::policy_action::action_of;
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::request::operation::{OPERATIONS, S3Operation};
use crate::text::star_match;

/// The longest policy, in bytes.
pub const POLICY_BYTES_MAX: usize = 20 << 10;

/// Most stars of a pattern: the time of a match is their number times the length of the key.
const STARS_MAX: usize = 16;

/// The start of the names of resources.
const ARN: &str = "arn:aws:s3:::";

/// The verdict of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyVerdict {
    /// A statement denies: nothing else counts.
    Deny,
    /// A statement allows, and none denies.
    Allow,
    /// No statement is about the request.
    Silent,
}

/// A request that a policy judges.
#[derive(Clone, Copy, Debug)]
pub struct PolicyRequest<'a> {
    /// The id of the key; `None` for an anonymous request.
    pub id: Option<&'a str>,
    /// The operation. DeleteObjects is judged as DeleteObject for each key.
    pub operation: S3Operation,
    /// The bucket.
    pub bucket: &'a str,
    /// The key, for an operation on an object.
    pub key: Option<&'a [u8]>,
    /// The prefix that a list asks for.
    pub prefix: Option<&'a [u8]>,
    /// The address of the client.
    pub address: IpAddr,
    /// The connection is encrypted.
    pub is_secure: bool,
}

/// A policy that was accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketPolicy(Vec<PolicyStatement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct PolicyStatement {
    is_deny: bool,
    /// Ids, or a star.
    principals: Vec<String>,
    /// Patterns in lower case.
    actions: Vec<String>,
    /// Patterns of `BUCKET` and `BUCKET/KEY`.
    resources: Vec<String>,
    conditions: Vec<PolicyCondition>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PolicyCondition {
    Address { is_inside: bool, networks: Vec<(IpAddr, u8)> },
    Secure(bool),
    Prefix { is_pattern: bool, values: Vec<String> },
}

impl BucketPolicy {
    /// Reads the policy of `bucket`.
    ///
    /// # Errors
    /// `MalformedPolicy`; `NotImplemented` with the name of an element that is not of the subset.
    pub fn parse(json: &[u8], bucket: &str) -> S3Result<Self> {
        if json.len() > POLICY_BYTES_MAX {
            return Err(malformed("It is too long."));
        }
        let json: Value = serde_json::from_slice(json).map_err(|_| malformed("It is no JSON."))?;
        let fields = json.as_object().ok_or_else(|| malformed("It is no object."))?;
        only(fields, &["Version", "Id", "Statement"], "")?;
        match fields.get("Version").map(Value::as_str) {
            None | Some(Some("2012-10-17" | "2008-10-17")) => {}
            _ => return Err(malformed("Its version is not known.")),
        }
        let statements = match fields.get("Statement") {
            Some(Value::Array(statements)) => statements.as_slice(),
            Some(statement) => std::slice::from_ref(statement),
            None => &[],
        };
        if statements.is_empty() {
            return Err(malformed("It has no statement."));
        }
        let statements = statements.iter().map(|statement| PolicyStatement::parse(statement, bucket));
        Ok(Self(statements.collect::<S3Result<_>>()?))
    }

    /// Judges a request: a statement that denies counts most.
    #[must_use]
    pub fn judge(&self, request: &PolicyRequest<'_>) -> PolicyVerdict {
        let mut verdict = PolicyVerdict::Silent;
        for statement in self.0.iter().filter(|statement| statement.is_about(request)) {
            if statement.is_deny {
                return PolicyVerdict::Deny;
            }
            verdict = PolicyVerdict::Allow;
        }
        verdict
    }

    /// Returns true if somebody without a key may do something from any address.
    #[must_use]
    pub fn is_public(&self) -> bool {
        let is_bound = |condition: &PolicyCondition| {
            matches!(condition, PolicyCondition::Address { is_inside: true, .. })
        };
        self.0.iter().any(|statement| {
            let is_for_all = statement.principals.iter().any(|id| id == "*");
            !statement.is_deny && is_for_all && !statement.conditions.iter().any(is_bound)
        })
    }
}

impl PolicyStatement {
    fn parse(statement: &Value, bucket: &str) -> S3Result<Self> {
        let fields = statement.as_object().ok_or_else(|| malformed("A statement is no object."))?;
        let is_deny = match fields.get("Effect").and_then(Value::as_str) {
            Some("Allow") => false,
            Some("Deny") => true,
            _ => return Err(malformed("The effect of a statement is Allow or Deny.")),
        };
        if !is_deny && fields.contains_key("NotPrincipal") {
            return Err(malformed("Allow with NotPrincipal is not supported."));
        }
        only(fields, &["Sid", "Effect", "Principal", "Action", "Resource", "Condition"], "")?;
        let needed = |name: &str| {
            let missing = || malformed(&format!("A statement has no {name}."));
            let value = fields.get(name).ok_or_else(missing)?;
            texts(value).filter(|texts| !texts.is_empty()).ok_or_else(missing)
        };
        let actions = needed("Action")?.iter().map(|action| check_action(action)).collect::<S3Result<_>>()?;
        let resources =
            needed("Resource")?.iter().map(|text| check_resource(text, bucket)).collect::<S3Result<_>>()?;
        let conditions = match fields.get("Condition") {
            None => Vec::new(),
            Some(Value::Object(operators)) => parse_conditions(operators)?,
            Some(_) => return Err(malformed("A condition is no object.")),
        };
        Ok(Self { is_deny, principals: principals(fields.get("Principal"))?, actions, resources, conditions })
    }

    fn is_about(&self, request: &PolicyRequest<'_>) -> bool {
        let is_principal = |id: &String| id == "*" || request.id == Some(id.as_str());
        let action = action_of(request.operation).to_ascii_lowercase();
        let mut resource = request.bucket.as_bytes().to_vec();
        if let Some(key) = request.key {
            resource.push(b'/');
            resource.extend_from_slice(key);
        }
        self.principals.iter().any(is_principal)
            && self.actions.iter().any(|pattern| star_match(pattern.as_bytes(), action.as_bytes(), false))
            && self.resources.iter().any(|pattern| star_match(pattern.as_bytes(), &resource, true))
            && self.conditions.iter().all(|condition| condition.holds(request))
    }
}

impl PolicyCondition {
    fn holds(&self, request: &PolicyRequest<'_>) -> bool {
        match self {
            Self::Address { is_inside, networks } => {
                networks.iter().any(|network| is_in_network(request.address, *network)) == *is_inside
            }
            Self::Secure(is_secure) => request.is_secure == *is_secure,
            Self::Prefix { is_pattern, values } => request.prefix.is_some_and(|prefix| {
                let fits = |value: &String| match is_pattern {
                    true => star_match(value.as_bytes(), prefix, true),
                    false => value.as_bytes() == prefix,
                };
                values.iter().any(fits)
            }),
        }
    }
}

/// Refuses fields other than these.
fn only(fields: &Map<String, Value>, known: &[&str], of: &str) -> S3Result<()> {
    match fields.keys().find(|name| !known.contains(&name.as_str())) {
        Some(name) => Err(S3Error::not_implemented(&format!("{of}{name} in a bucket policy"))),
        None => Ok(()),
    }
}

/// One text or a list of them.
fn texts(value: &Value) -> Option<Vec<&str>> {
    match value {
        Value::String(text) => Some(vec![text]),
        Value::Array(values) => values.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

fn principals(value: Option<&Value>) -> S3Result<Vec<String>> {
    let wrong = || malformed("Invalid principal in policy.");
    let ids = match value.ok_or_else(wrong)? {
        Value::String(all) if all == "*" => vec!["*"],
        Value::Object(kinds) => {
            only(kinds, &["AWS"], "Principal ")?;
            kinds.get("AWS").and_then(texts).filter(|ids| !ids.is_empty()).ok_or_else(wrong)?
        }
        _ => return Err(wrong()),
    };
    let is_id =
        |id: &str| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    match ids.iter().find(|id| **id != "*" && !is_id(id)) {
        Some(other) => Err(S3Error::not_implemented(&format!("Principal {other} in a bucket policy"))),
        None => Ok(ids.into_iter().map(ToOwned::to_owned).collect()),
    }
}

/// An action as a pattern in lower case; it must be one of an operation.
fn check_action(action: &str) -> S3Result<String> {
    let pattern = action.to_ascii_lowercase();
    if !pattern.starts_with("s3:") && pattern != "*" {
        return Err(malformed("Policy has invalid action."));
    }
    let has_odd_star = pattern.trim_end_matches('*').contains('*') || pattern.ends_with("**");
    let fits = |name: &str| star_match(pattern.as_bytes(), name.to_ascii_lowercase().as_bytes(), false);
    let is_known = OPERATIONS.iter().any(|row| fits(action_of(row.operation)));
    if has_odd_star || !is_known {
        return Err(S3Error::not_implemented(&format!("Action {action} in a bucket policy")));
    }
    Ok(pattern)
}

/// A resource as a pattern; it must be about the bucket.
fn check_resource(resource: &str, bucket: &str) -> S3Result<String> {
    let pattern = resource.strip_prefix(ARN).ok_or_else(|| malformed("Policy has invalid resource."))?;
    let name = pattern.split_once('/').map_or(pattern, |(name, _)| name);
    let is_ours = star_match(name.as_bytes(), bucket.as_bytes(), true);
    if !is_ours {
        return Err(malformed("Policy has invalid resource."));
    }
    check_stars(pattern)
}

fn check_stars(pattern: &str) -> S3Result<String> {
    if pattern.matches('*').count() > STARS_MAX {
        return Err(malformed("A pattern has too many stars."));
    }
    // A policy variable would be a literal here, and so allow or deny another thing than it is meant for.
    if pattern.contains("${") {
        return Err(S3Error::not_implemented("A variable in a bucket policy"));
    }
    Ok(pattern.to_owned())
}

fn parse_conditions(operators: &Map<String, Value>) -> S3Result<Vec<PolicyCondition>> {
    let mut conditions = Vec::new();
    for (operator, keys) in operators {
        let keys = keys.as_object().ok_or_else(|| malformed("A condition is no object."))?;
        for (key, value) in keys {
            let wrong = || malformed(&format!("The value of {operator} {key} is wrong."));
            let condition = match (operator.as_str(), key.to_ascii_lowercase().as_str()) {
                ("IpAddress" | "NotIpAddress", "aws:sourceip") => {
                    let networks =
                        texts(value).ok_or_else(wrong)?.into_iter().map(network).collect::<Option<_>>();
                    PolicyCondition::Address {
                        is_inside: operator == "IpAddress",
                        networks: networks.ok_or_else(wrong)?,
                    }
                }
                ("Bool", "aws:securetransport") => match (value, texts(value).as_deref()) {
                    (Value::Bool(flag), _) => PolicyCondition::Secure(*flag),
                    (_, Some(["true"])) => PolicyCondition::Secure(true),
                    (_, Some(["false"])) => PolicyCondition::Secure(false),
                    _ => return Err(wrong()),
                },
                ("StringEquals" | "StringLike", "s3:prefix") => {
                    let values = texts(value)
                        .ok_or_else(wrong)?
                        .into_iter()
                        .map(check_stars)
                        .collect::<S3Result<_>>()?;
                    PolicyCondition::Prefix { is_pattern: operator == "StringLike", values }
                }
                _ => {
                    return Err(S3Error::not_implemented(&format!(
                        "Condition {operator} {key} in a bucket policy"
                    )));
                }
            };
            conditions.push(condition);
        }
    }
    Ok(conditions)
}

/// An address, or a network of all addresses with the same first bits.
fn network(text: &str) -> Option<(IpAddr, u8)> {
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let address: IpAddr = address.parse().ok()?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.map_or(Some(most), |bits| bits.parse().ok())?;
    (bits <= most).then_some((address, bits))
}

fn is_in_network(address: IpAddr, (network, bits): (IpAddr, u8)) -> bool {
    // A client of IPv4 on a socket of IPv6 has a mapped address.
    match (address.to_canonical(), network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            let differ = u32::from(address) ^ u32::from(network);
            differ.leading_zeros() >= bits.into()
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            let differ = u128::from(address) ^ u128::from(network);
            differ.leading_zeros() >= bits.into()
        }
        _ => false,
    }
}

fn malformed(why: &str) -> S3Error {
    S3Error::new(ErrorCode::MalformedPolicy, why)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REQUEST: PolicyRequest<'_> = PolicyRequest {
        id: None,
        operation: S3Operation::GetObject,
        bucket: "b",
        key: Some(b"a/k"),
        prefix: None,
        address: IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 2, 3)),
        is_secure: false,
    };

    fn statement(more: &str) -> String {
        format!(
            r#"{{"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::b/*"{more}}}"#
        )
    }

    fn parse(statements: &str) -> Result<BucketPolicy, (ErrorCode, String)> {
        let text = format!(r#"{{"Version":"2012-10-17","Statement":[{statements}]}}"#);
        BucketPolicy::parse(text.as_bytes(), "b").map_err(|error| (error.code, error.message))
    }

    fn verdict(statements: &str, request: &PolicyRequest<'_>) -> PolicyVerdict {
        parse(statements).unwrap().judge(request)
    }

    #[test]
    fn a_statement_is_about_principal_action_resource_and_conditions() {
        let all = statement("");
        assert_eq!(verdict(&all, &REQUEST), PolicyVerdict::Allow);
        assert!(parse(&all).unwrap().is_public());
        let head = PolicyRequest { operation: S3Operation::HeadObject, ..REQUEST };
        assert_eq!(verdict(&all, &head), PolicyVerdict::Allow);
        let put = PolicyRequest { operation: S3Operation::PutObject, ..REQUEST };
        assert_eq!(verdict(&all, &put), PolicyVerdict::Silent);
        for (from, to, expected) in [
            ("\"*\"", r#"{"AWS":["ME","YOU"]}"#, PolicyVerdict::Silent),
            ("\"*\"", r#"{"AWS":"*"}"#, PolicyVerdict::Allow),
            ("GetObject", "getobject", PolicyVerdict::Allow),
            ("GetObject", "Get*", PolicyVerdict::Allow),
            ("GetObject", "*", PolicyVerdict::Allow),
            ("b/*", "b/a?k", PolicyVerdict::Allow),
            ("b/*", "b/z*", PolicyVerdict::Silent),
            ("b/*", "b", PolicyVerdict::Silent),
            ("b/*", "*", PolicyVerdict::Allow),
        ] {
            assert_eq!(verdict(&all.replace(from, to), &REQUEST), expected, "{to}");
        }
        let mine = PolicyRequest { id: Some("ME"), ..REQUEST };
        assert_eq!(verdict(&all.replace("\"*\"", r#"{"AWS":"ME"}"#), &mine), PolicyVerdict::Allow);
        let deny = statement("").replace("Allow", "Deny").replace("b/*", "b/a/*");
        assert_eq!(verdict(&format!("{all},{deny}"), &REQUEST), PolicyVerdict::Deny);
        assert_eq!(verdict(&format!("{deny},{all}"), &REQUEST), PolicyVerdict::Deny);
    }

    #[test]
    fn conditions_hold_for_addresses_transport_and_prefixes() {
        let list = PolicyRequest {
            operation: S3Operation::ListObjectsV2,
            key: None,
            prefix: Some(b"a/b"),
            ..REQUEST
        };
        for (condition, request, expected) in [
            (r#""IpAddress":{"aws:SourceIp":["192.168.0.0/16","10.0.0.0/8"]}"#, REQUEST, true),
            (r#""IpAddress":{"aws:SourceIp":"10.1.2.4"}"#, REQUEST, false),
            (r#""IpAddress":{"aws:SourceIp":"0.0.0.0/0"}"#, REQUEST, true),
            (r#""NotIpAddress":{"aws:SourceIp":"10.0.0.0/8"}"#, REQUEST, false),
            (r#""IpAddress":{"aws:SourceIp":"::/0"}"#, REQUEST, false),
            (r#""Bool":{"aws:SecureTransport":"true"}"#, REQUEST, false),
            (r#""Bool":{"aws:SecureTransport":false}"#, REQUEST, true),
            (r#""StringEquals":{"s3:prefix":["x","a/b"]}"#, list, true),
            (r#""StringEquals":{"s3:prefix":"a/*"}"#, list, false),
            (r#""StringLike":{"s3:prefix":"a/*"}"#, list, true),
            (r#""StringLike":{"s3:prefix":"*"}"#, REQUEST, false),
        ] {
            let text = statement(&format!(r#","Condition":{{{condition}}}"#))
                .replace("s3:GetObject", "s3:*")
                .replace("b/*", "*");
            assert_eq!(verdict(&text, &request) == PolicyVerdict::Allow, expected, "{condition}");
        }
        let mapped = PolicyRequest { address: "::ffff:10.1.2.3".parse().unwrap(), ..REQUEST };
        let text = statement(r#","Condition":{"IpAddress":{"aws:SourceIp":"10.0.0.0/8"}}"#);
        assert_eq!(verdict(&text, &mapped), PolicyVerdict::Allow);
        assert!(!parse(&text).unwrap().is_public());
    }

    #[test]
    fn everything_else_is_refused_by_its_name() {
        for (text, name) in [
            (statement(r#","NotAction":"s3:GetObject""#), "NotAction"),
            (statement(r#","NotPrincipal":"*""#).replace("Allow", "Deny"), "NotPrincipal"),
            (statement(r#","Condition":{"StringEquals":{"aws:Referer":"x"}}"#), "StringEquals aws:Referer"),
            (statement(r#","Condition":{"DateLessThan":{"aws:CurrentTime":"x"}}"#), "DateLessThan"),
            (statement("").replace("s3:GetObject", "s3:GetObjectVersion"), "s3:GetObjectVersion"),
            (statement("").replace("s3:GetObject", "s3:*Object"), "s3:*Object"),
            (statement("").replace("\"*\"", r#"{"Service":"x"}"#), "Service"),
            (statement("").replace("\"*\"", r#"{"AWS":"arn:aws:iam::1:root"}"#), "arn:aws:iam::1:root"),
            (statement("").replace("b/*", "b/${aws:username}"), "variable"),
        ] {
            let (code, message) = parse(&text).unwrap_err();
            assert!(code == ErrorCode::NotImplemented && message.contains(name), "{text}: {message}");
        }
        for text in [
            String::new(),
            "1".to_owned(),
            statement("").replace("Allow", "Maybe"),
            statement("").replace("\"Principal\"", "\"NotPrincipal\""),
            statement("").replace(r#""Principal":"*","#, ""),
            statement("").replace(r#""Action":"s3:GetObject","#, ""),
            statement("").replace("s3:GetObject", "ec2:Run"),
            statement("").replace("b/*", "other/*"),
            statement("").replace("arn:aws:s3:::b", "b"),
            statement("").replace("b/*", &format!("b/{}", "*a".repeat(17))),
            statement(r#","Condition":{"IpAddress":{"aws:SourceIp":"10.0.0.0/33"}}"#),
        ] {
            assert_eq!(parse(&text).unwrap_err().0, ErrorCode::MalformedPolicy, "{text}");
        }
        assert!(BucketPolicy::parse(&vec![b' '; POLICY_BYTES_MAX + 1], "b").is_err());
    }

    proptest! {
        #[test]
        fn any_statement_is_read_or_refused(more: String, json: Vec<u8>) {
            let _ = BucketPolicy::parse(&json, "b");
            if let Ok(policy) = parse(&statement(&more)) {
                let _ = policy.judge(&REQUEST);
            }
        }
    }
}
