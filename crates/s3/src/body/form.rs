//! Forms that a browser posts: `multipart/form-data` with fields, and the file as the last part.
//!
//! The fields before the file are kept, within a limit. The bytes of the file are passed on as they come, except a tail that
//! may be the start of the boundary.

use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::sign::form::{FORM_POLICY_BYTES_MAX, FormFields};

/// Most bytes of all that comes before the file. A policy has up to 20 KiB of them.
pub const FORM_HEAD_BYTES_MAX: usize = FORM_POLICY_BYTES_MAX + (12 << 10);

/// Most fields before the file.
pub const FORM_FIELDS_MAX: usize = 100;

/// Longest boundary, by RFC 2046.
const BOUNDARY_BYTES_MAX: usize = 70;

/// The boundary in a Content-Type header.
///
/// # Errors
/// `MalformedPOSTRequest` for another type.
pub fn form_boundary(content_type: &str) -> S3Result<String> {
    let mut parts = content_type.split(';');
    let is_form = parts.next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("multipart/form-data"));
    let boundary = parts.find_map(|part| {
        let (name, value) = part.trim().split_once('=')?;
        name.trim().eq_ignore_ascii_case("boundary").then(|| value.trim().trim_matches('"'))
    });
    let fits = |boundary: &&str| (1..=BOUNDARY_BYTES_MAX).contains(&boundary.len());
    let boundary = boundary.filter(fits).filter(|_| is_form);
    boundary
        .map(ToOwned::to_owned)
        .ok_or_else(|| malformed("Its type is not multipart/form-data with a boundary."))
}

/// The part of a form before its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormHead {
    /// The fields: names in lower case, each once. In `key`, `${filename}` is replaced.
    pub fields: Vec<(String, String)>,
}

/// Reads one form.
#[derive(Debug)]
pub struct FormReader {
    /// Line end and boundary.
    delimiter: Vec<u8>,
    state: FormState,
    /// Bytes of the head; in the file, the tail that was not passed on.
    pending: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FormState {
    Head,
    File,
    End,
}

impl FormReader {
    /// A reader of a form with this boundary.
    #[must_use]
    pub fn new(boundary: &str) -> Self {
        Self {
            delimiter: format!("\r\n--{boundary}").into_bytes(),
            state: FormState::Head,
            pending: b"\r\n".to_vec(),
        }
    }

    /// Takes a piece of the body. Returns the head as soon as the file starts; bytes of the file go to `file`.
    ///
    /// # Errors
    /// `MalformedPOSTRequest`, `MaxPostPreDataLengthExceeded`, `InvalidArgument`.
    pub fn feed(&mut self, piece: &[u8], file: &mut dyn FnMut(&[u8])) -> S3Result<Option<FormHead>> {
        match self.state {
            FormState::Head => {
                self.pending.extend_from_slice(piece);
                // The file starts after a line end, so only a piece with one can complete the head.
                let found = if piece.contains(&b'\n') { self.head()? } else { None };
                let Some((head, used)) = found else {
                    let is_long = self.pending.len() > FORM_HEAD_BYTES_MAX;
                    return if is_long {
                        Err(ErrorCode::MaxPostPreDataLengthExceeded.into())
                    } else {
                        Ok(None)
                    };
                };
                if used > FORM_HEAD_BYTES_MAX {
                    return Err(ErrorCode::MaxPostPreDataLengthExceeded.into());
                }
                self.state = FormState::File;
                let rest = self.pending.split_off(used);
                self.pending.clear();
                self.take_file(&rest, file);
                Ok(Some(head))
            }
            FormState::File => {
                self.take_file(piece, file);
                Ok(None)
            }
            // Fields after the file are ignored, as S3 does.
            FormState::End => Ok(None),
        }
    }

    /// Finishes the body.
    ///
    /// # Errors
    /// `MalformedPOSTRequest` if the form has no file or is cut.
    pub fn finish(self) -> S3Result<()> {
        if self.state == FormState::End { Ok(()) } else { Err(malformed("It has no file, or is cut.")) }
    }

    fn take_file(&mut self, piece: &[u8], file: &mut dyn FnMut(&[u8])) {
        // Only a tail shorter than the delimiter is carried over, so a long piece is searched in place.
        let carried = self.pending.len();
        let joined;
        let bytes = if carried == 0 {
            piece
        } else {
            joined = [&std::mem::take(&mut self.pending)[..], piece].concat();
            &joined
        };
        if let Some(at) = find(bytes, &self.delimiter) {
            file(&bytes[..at]);
            self.state = FormState::End;
            return;
        }
        let tail = (1..self.delimiter.len())
            .rev()
            .find(|tail| bytes.ends_with(&self.delimiter[..*tail]))
            .unwrap_or(0);
        let (whole, tail) = bytes.split_at(bytes.len() - tail);
        if !whole.is_empty() {
            file(whole);
        }
        self.pending = tail.to_vec();
    }

    /// The head, and its bytes; `None` if the file has not started.
    fn head(&self) -> S3Result<Option<(FormHead, usize)>> {
        let mut fields: Vec<(String, String)> = Vec::new();
        let bytes = &self.pending[..self.pending.len().min(FORM_HEAD_BYTES_MAX + 1)];
        // Something before the first boundary is allowed and ignored.
        let Some(start) = find(bytes, &self.delimiter) else { return Ok(None) };
        let mut at = start + self.delimiter.len();
        loop {
            let rest = bytes.get(at..).unwrap_or(&[]);
            if rest.starts_with(b"--") {
                return Err(malformed("It has no file."));
            }
            let Some(end) = find(rest, b"\r\n\r\n") else { return Ok(None) };
            let part = PartHead::parse(&rest[..end])?;
            let content = at + end + 4;
            if part.name == "file" {
                replace_filename(&mut fields, part.filename.as_deref().unwrap_or(""));
                return Ok(Some((FormHead { fields }, content)));
            }
            let Some(length) = bytes.get(content..).and_then(|rest| find(rest, &self.delimiter)) else {
                return Ok(None);
            };
            let value = str::from_utf8(&bytes[content..content + length]);
            let value = value.map_err(|_| malformed("A field is not UTF-8."))?;
            if fields.iter().any(|(name, _)| *name == part.name) || fields.len() == FORM_FIELDS_MAX {
                return Err(S3Error::argument(
                    &part.name,
                    "",
                    "The form has the field twice, or too many fields.",
                ));
            }
            fields.push((part.name, value.to_owned()));
            at = content + length + self.delimiter.len();
        }
    }
}

fn replace_filename(fields: &mut FormFields, filename: &str) {
    // Browsers of old send a whole path.
    let name = filename.rsplit(['/', '\\']).next().unwrap_or(filename);
    for (field, value) in fields {
        if field == "key" {
            *value = value.replace("${filename}", name);
        }
    }
}

/// The head of a part.
struct PartHead {
    /// The field's name, in lower case.
    name: String,
    filename: Option<String>,
}

impl PartHead {
    fn parse(bytes: &[u8]) -> S3Result<Self> {
        let text = str::from_utf8(bytes).map_err(|_| malformed("The head of a part is not UTF-8."))?;
        let disposition = text.split("\r\n").find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
        });
        let disposition = disposition.ok_or_else(|| malformed("A part has no Content-Disposition."))?;
        let name = parameter(disposition, "name").ok_or_else(|| malformed("A part has no name."))?;
        Ok(Self { name: name.to_ascii_lowercase(), filename: parameter(disposition, "filename") })
    }
}

/// A parameter of a header. In quotes it may have semicolons, and backslashes before quotes.
fn parameter(header: &str, wanted: &str) -> Option<String> {
    let mut rest = header.split_once(';')?.1;
    loop {
        let (name, after) = rest.split_once('=')?;
        let (value, left) = match after.trim_start().strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => {
                let (value, left) = after.split_once(';').unwrap_or((after, ""));
                (value.trim().to_owned(), left)
            }
        };
        if name.trim().trim_start_matches(';').trim().eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = left;
    }
}

/// The text up to the closing quote, and the rest after it.
fn unquote(quoted: &str) -> Option<(String, &str)> {
    let mut out = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((out, &quoted[at + 1..])),
            '\\' if quoted[at + 1..].starts_with(['"', '\\']) => out.extend(chars.next().map(|(_, c)| c)),
            c => out.push(c),
        }
    }
    None
}

/// The first place of `needle`. The first byte of a delimiter is rare, so a memory search for it is fast enough.
fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    let first = *needle.first()?;
    let mut from = 0;
    while let Some(at) = bytes.get(from..)?.iter().position(|byte| *byte == first) {
        if bytes[from + at..].starts_with(needle) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

fn malformed(why: &str) -> S3Error {
    S3Error::new(ErrorCode::MalformedPOSTRequest, format!("The form is not valid. {why}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn part(name: &str, value: &str) -> String {
        format!("--B\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    }

    fn file(name: &str, value: &str) -> String {
        format!(
            "--B\r\ncontent-disposition: form-data; name=\"File\"; filename=\"{name}\"\r\nContent-Type: a/b\r\n\r\n{value}\r\n--B--\r\n"
        )
    }

    type ReadForm = (Vec<(String, String)>, Vec<u8>);

    /// The fields of a form, and its file, read in pieces of `step` bytes.
    fn read(body: &[u8], step: usize) -> Result<ReadForm, ErrorCode> {
        let (mut reader, mut found, mut head) = (FormReader::new("B"), Vec::new(), None);
        for piece in body.chunks(step) {
            let new = reader
                .feed(piece, &mut |bytes| found.extend_from_slice(bytes))
                .map_err(|error| error.code)?;
            head = head.or(new);
            assert!(reader.pending.len() <= FORM_HEAD_BYTES_MAX + step);
        }
        reader.finish().map_err(|error| error.code)?;
        Ok((head.unwrap().fields, found))
    }

    #[test]
    fn fields_and_file_are_read_in_pieces_of_any_size() {
        let value = "\r\n--\r\n--C\r\n--A-\r";
        let body = part("Key", "u/${filename}")
            + &part("acl", "private")
            + &file("C:\\\\x\\\"; name=y.jpg", value)
            + &part("late", "1");
        for step in [1, 2, 3, 50, 1_000] {
            let (fields, found) = read(body.as_bytes(), step).unwrap();
            let expected = [("key", "u/x\"; name=y.jpg"), ("acl", "private")];
            assert_eq!(fields, expected.map(|(name, value)| (name.to_owned(), value.to_owned())), "{step}");
            assert_eq!(String::from_utf8(found).unwrap(), value, "{step}");
        }
    }

    #[test]
    fn malformed_and_long_forms_are_refused() {
        let long = part("a", &"v".repeat(FORM_HEAD_BYTES_MAX)) + &file("f", "x");
        let many: String = (0..=FORM_FIELDS_MAX).map(|number| part(&number.to_string(), "")).collect();
        for (body, code) in [
            (String::new(), ErrorCode::MalformedPOSTRequest),
            (part("a", "1"), ErrorCode::MalformedPOSTRequest),
            (part("a", "1") + "--B--\r\n", ErrorCode::MalformedPOSTRequest),
            (part("a", "1") + &part("A", "2") + &file("f", "x"), ErrorCode::InvalidArgument),
            (file("f", "x").replace("\r\n--B--\r\n", ""), ErrorCode::MalformedPOSTRequest),
            (file("f", "x").replace("content-disposition", "x"), ErrorCode::MalformedPOSTRequest),
            (long, ErrorCode::MaxPostPreDataLengthExceeded),
            (many + &file("f", "x"), ErrorCode::InvalidArgument),
        ] {
            for step in [7, 1 << 20] {
                assert_eq!(
                    read(body.as_bytes(), step).err(),
                    Some(code),
                    "{step} {}",
                    &body[..body.len().min(200)]
                );
            }
        }
    }

    #[test]
    fn boundaries() {
        for content_type in
            ["multipart/form-data; boundary=B", "Multipart/Form-Data;charset=x; Boundary=\"B\""]
        {
            assert_eq!(form_boundary(content_type).unwrap(), "B");
        }
        for content_type in
            ["text/plain; boundary=B", "multipart/form-data", "multipart/form-data; boundary="]
        {
            assert!(form_boundary(content_type).is_err(), "{content_type}");
        }
    }

    proptest! {
        #[test]
        fn any_file_round_trips(value: Vec<u8>, step in 1_usize..100) {
            let form = file("f", "VALUE");
            let (before, after) = form.split_once("VALUE").unwrap();
            let body = [before.as_bytes(), &value, after.as_bytes()].concat();
            prop_assume!(find(&value, b"\r\n--B").is_none());
            prop_assert_eq!(read(&body, step).unwrap().1, value);
        }

        #[test]
        fn any_bytes_are_read_or_refused(body: Vec<u8>, head in "[-BC\"=; \r\nfilename]{0,64}", step in 1_usize..64) {
            let _ = read(&body, step);
            let _ = read(format!("--B\r\nContent-Disposition: form-data; {head}\r\n\r\nx\r\n--B--").as_bytes(), step);
        }
    }
}
