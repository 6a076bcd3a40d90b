//! The fields of a POST form as an ordinary put, and the answer that the form asks for.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::etag::ObjectEtag;
use super::tags::{OBJECT_TAGS_MAX, TagSet};
use crate::object::documents::tagging::parse_tagging;
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::sign::form::{FormFields, form_field};
use crate::text::percent_encode;

/// The answer to a form whose file was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PostAnswer {
    /// 200 or 204, without a document.
    Status(u16),
    /// 201, with a document.
    Document,
    /// 303 to this place.
    Redirect(String),
}

impl PostAnswer {
    /// The answer that a form asks for. A status that is not known counts as 204.
    #[must_use]
    pub fn of(fields: &FormFields, bucket: &str, key: &str, etag: &ObjectEtag) -> Self {
        let redirect =
            form_field(fields, "success_action_redirect").or_else(|| form_field(fields, "redirect"));
        let is_place = |place: &&str| {
            place.starts_with("http") && place.contains("://") && HeaderValue::from_str(place).is_ok()
        };
        if let Some(place) = redirect.filter(is_place) {
            let mut location = place.to_owned();
            location.push(if place.contains('?') { '&' } else { '?' });
            for (name, value) in [("bucket=", bucket), ("&key=", key), ("&etag=", &etag.to_string())] {
                location.push_str(name);
                percent_encode(&mut location, value.as_bytes());
            }
            return Self::Redirect(location);
        }
        match form_field(fields, "success_action_status") {
            Some("200") => Self::Status(200),
            Some("201") => Self::Document,
            _ => Self::Status(204),
        }
    }
}

/// The key of a form.
///
/// # Errors
/// `UserKeyMustBeSpecified`.
pub fn form_key(fields: &FormFields) -> S3Result<&str> {
    let key = form_field(fields, "key").filter(|key| !key.is_empty());
    key.ok_or_else(|| ErrorCode::UserKeyMustBeSpecified.into())
}

/// The fields that are headers of a put: content headers, user metadata, checksums, and the ACL.
///
/// # Errors
/// `InvalidArgument` for a value that cannot be a header.
pub fn form_headers(fields: &FormFields) -> S3Result<HeaderMap> {
    const CONTENT: &str =
        "content-type content-encoding content-disposition content-language cache-control expires";
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        let name = if name == "acl" { "x-amz-acl" } else { name };
        let is_signature =
            ["credential", "algorithm", "date", "signature"].iter().any(|end| name == format!("x-amz-{end}"));
        let is_named = name.starts_with("x-amz-") || CONTENT.split(' ').any(|known| known == name);
        if is_signature || !is_named {
            continue;
        }
        let wrong = || S3Error::argument(name, "", "The field cannot be a header.");
        let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| wrong())?;
        headers.insert(HeaderName::try_from(name).map_err(|_| wrong())?, value);
    }
    Ok(headers)
}

/// The tags of a form: a field with the document of PutObjectTagging.
///
/// # Errors
/// `MalformedXML`, `InvalidTag`.
pub fn form_tags(fields: &FormFields) -> S3Result<TagSet> {
    form_field(fields, "tagging")
        .map_or(Ok(TagSet::default()), |text| parse_tagging(text.as_bytes(), OBJECT_TAGS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_form_chooses_its_answer() {
        let answer =
            |pairs: &[(&str, &str)]| PostAnswer::of(&fields(pairs), "b", "a k", &ObjectEtag::Md5([0; 16]));
        assert_eq!(answer(&[("success_action_status", "201")]), PostAnswer::Document);
        assert_eq!(answer(&[("success_action_status", "200")]), PostAnswer::Status(200));
        for status in ["404", ""] {
            assert_eq!(answer(&[("success_action_status", status)]), PostAnswer::Status(204));
        }
        let place = |start: &str| format!("{start}bucket=b&key=a%20k&etag=%22{}%22", "0".repeat(32));
        let redirect =
            |place: &str| answer(&[("success_action_redirect", place), ("success_action_status", "200")]);
        assert_eq!(redirect("http://h/p"), PostAnswer::Redirect(place("http://h/p?")));
        assert_eq!(redirect("http://h/p?x=1"), PostAnswer::Redirect(place("http://h/p?x=1&")));
        // A place that cannot be a header, or is no address, is none.
        for place in ["http://h/\r\nset-cookie: a", "javascript:alert(1)"] {
            assert_eq!(redirect(place), PostAnswer::Status(200), "{place}");
        }
    }

    #[test]
    fn fields_become_headers_and_tags() {
        let form = fields(&[
            ("key", "k"),
            ("acl", "private"),
            ("content-type", "a/b"),
            ("x-amz-meta-a", "é"),
            ("x-amz-date", "20130524T000000Z"),
            ("policy", "p"),
            ("tagging", "<Tagging><TagSet><Tag><Key>a</Key><Value>1</Value></Tag></TagSet></Tagging>"),
        ]);
        let headers = form_headers(&form).unwrap();
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["content-type", "x-amz-acl", "x-amz-meta-a"]);
        assert_eq!(form_tags(&form).unwrap().pairs().len(), 1);
        assert_eq!(form_key(&form), Ok("k"));
        for form in [fields(&[]), fields(&[("key", "")])] {
            assert_eq!(form_key(&form).unwrap_err().code, ErrorCode::UserKeyMustBeSpecified);
        }
        assert!(form_headers(&fields(&[("content-type", "a\r\nb")])).is_err());
    }
}
