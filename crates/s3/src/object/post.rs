//! PostObject: a form of a browser. Its fields are those of an ordinary put, its signature is that of a policy among them, and it
//! chooses its answer.

use std::ops::RangeInclusive;

use http::header::LOCATION;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use shoal_http::Peer;
use shoal_metrics::{note_caller, note_key};

use super::conditions::WriteCondition;
use super::etag::ObjectEtag;
use super::put::{NewObject, StoredObject, StreamedObject, metadata_with};
use super::tags::{OBJECT_TAGS_MAX, TagSet};
use crate::access::acl::CannedAcl;
use crate::answer::S3Answer;
use crate::answer::result::post_result;
use crate::body::check::BodyCheck;
use crate::body::claims::BodyClaims;
use crate::body::form::{FormReader, form_boundary};
use crate::body::reader::BodyReader;
use crate::bucket::settings::allow_object_acl;
use crate::object::documents::tagging::parse_tagging;
use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::request::headers::{check_expected_owner, header};
use crate::request::operation::refuse_later_headers;
use crate::request::target::BucketAndKey;
use crate::serve::call::S3Call;
use crate::serve::permission::check;
use crate::sign::form::{FormFields, form_field, verify_form};
use crate::state::S3State;
use crate::text::percent_encode;
use crate::time::SECOND_NS;

/// PostObject.
pub(crate) async fn post_object(state: &S3State, peer: &Peer, mut call: S3Call) -> S3Result<S3Answer> {
    if call.caller.has_key() {
        let why = "A form is signed by the policy in its fields, and not by a header or the query.";
        return Err(S3Error::new(ErrorCode::InvalidRequest, why));
    }
    let boundary = form_boundary(header(&call.headers, "content-type")?.unwrap_or(""))?;
    let limits = (state.min_rate, state.room_wait_max);
    let mut form = Form {
        body: BodyReader::stream(call.take_body()?, limits, &call.permit),
        reader: FormReader::new(&boundary),
    };
    let mut file = Vec::new();
    let fields = form.fields(&mut file).await?;
    let (object, check, file_bytes) = let_in(state, peer, &mut call, &fields).await?;
    let mut streamed = StreamedObject::begin(state, &call.found, object, check)?;
    loop {
        streamed.take(&file).await?;
        check_file_bytes(&file_bytes, streamed.bytes(), false)?;
        file.clear();
        if !form.next(&mut file).await? {
            break;
        }
    }
    form.reader.finish()?;
    check_file_bytes(&file_bytes, streamed.bytes(), true)?;
    let stored = streamed.finish(state).await?;
    answer(state, &call, &fields, &stored)
}

/// A form that arrives.
struct Form {
    body: BodyReader,
    reader: FormReader,
}

impl Form {
    /// Takes pieces until the file starts. Returns the fields, and puts the first bytes of the file into `file`.
    async fn fields(&mut self, file: &mut Vec<u8>) -> S3Result<Vec<(String, String)>> {
        loop {
            let Some(piece) = self.body.next().await? else {
                let why = "The form is not valid. It has no file, or is cut.";
                return Err(S3Error::new(ErrorCode::MalformedPOSTRequest, why));
            };
            if let Some(head) = self.reader.feed(&piece, &mut |bytes| file.extend_from_slice(bytes))? {
                return Ok(head.fields);
            }
        }
    }

    /// Puts the next bytes of the file into `file`. Returns false at the end of the form.
    async fn next(&mut self, file: &mut Vec<u8>) -> S3Result<bool> {
        let Some(piece) = self.body.next().await? else { return Ok(false) };
        self.reader.feed(&piece, &mut |bytes| file.extend_from_slice(bytes))?;
        Ok(true)
    }
}

/// Verifies a form, and finds the object that it makes. Returns also the check of its file, and the lengths that the file may have.
async fn let_in(
    state: &S3State,
    peer: &Peer,
    call: &mut S3Call,
    fields: &FormFields,
) -> S3Result<(NewObject, BodyCheck, RangeInclusive<u64>)> {
    let now_s = state.now_ns() / SECOND_NS;
    let secrets = |id: &str| state.secrets(id, now_s);
    let verified = verify_form(fields, call.bucket(), &state.signing, &secrets, now_s)?;
    call.caller = state.caller_of(verified.id.as_deref())?;
    if let Some(principal) = call.caller.principal() {
        note_caller(principal.identity());
    }
    call.target = BucketAndKey::of(call.bucket().to_owned(), form_key(fields)?.as_bytes().to_vec())?;
    note_key(call.bucket(), call.key());
    state.find_bucket(call).await?;
    check(call)?;
    // Also a caller without a key, if the bucket lets it in.
    peer.set_authenticated();
    let headers = form_headers(fields)?;
    refuse_later_headers(&headers)?;
    check_expected_owner(&headers, call.found.owner())?;
    let metadata = metadata_with(&headers, &form_tags(fields)?)?;
    allow_object_acl(state, call, CannedAcl::in_headers(&headers)?).await?;
    let check = BodyCheck::new(BodyClaims::of_form(&headers)?, None, call.found.etags(state.etags), None);
    let object = NewObject { key: call.object_key()?, metadata, condition: WriteCondition::Always };
    Ok((object, check, verified.file_bytes))
}

/// Checks the bytes of a file that arrived so far, or, at its end, all of them.
fn check_file_bytes(allowed: &RangeInclusive<u64>, bytes: u64, is_end: bool) -> S3Result<()> {
    if bytes > *allowed.end() {
        let error = S3Error::from(ErrorCode::EntityTooLarge);
        return Err(error.with("MaxSizeAllowed", allowed.end().to_string()));
    }
    if is_end && bytes < *allowed.start() {
        let error = S3Error::from(ErrorCode::EntityTooSmall);
        return Err(error.with("MinSizeAllowed", allowed.start().to_string()));
    }
    Ok(())
}

/// The answer that the form asks for.
fn answer(state: &S3State, call: &S3Call, fields: &FormFields, stored: &StoredObject) -> S3Result<S3Answer> {
    let (key, etag) = (form_key(fields)?, stored.etag());
    let place = call.location(state)?;
    let mut answer = stored.answer(state, call);
    let (status, location) = match PostAnswer::of(fields, call.bucket(), key, &etag) {
        PostAnswer::Status(status) => (StatusCode::from_u16(status), place),
        PostAnswer::Redirect(location) => (Ok(StatusCode::SEE_OTHER), location),
        PostAnswer::Document => {
            let document = S3Answer::xml(post_result(&place, call.bucket(), key, &etag));
            answer.headers.extend(document.headers);
            answer.body = document.body;
            (Ok(StatusCode::CREATED), place)
        }
    };
    answer.status = status.unwrap_or(StatusCode::NO_CONTENT);
    if let Ok(location) = HeaderValue::try_from(location) {
        answer.headers.insert(LOCATION, location);
    }
    Ok(answer)
}

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
    const CONTENT: &str = "content-type content-encoding content-disposition content-language content-md5 cache-control expires";
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
