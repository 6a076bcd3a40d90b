//! Reads XML documents of requests, with limits.
//!
//! Refused: encodings other than UTF-8, document types, entities other than the five of XML, elements deeper than
//! [`DEPTH_MAX`]. Namespaces, attributes, comments and processing instructions are ignored. The reader keeps only the text of
//! one element at a time.

use quick_xml::Reader;
use quick_xml::events::{BytesRef, Event};

use crate::request::error::{ErrorCode, S3Error, S3Result};
use crate::request::operation::XML_BYTES_MAX;

/// How deep elements may be nested; S3's own documents need six.
pub const DEPTH_MAX: usize = 8;

/// A position in a document.
pub struct XmlReader<'a> {
    reader: Reader<&'a [u8]>,
    depth: usize,
}

enum Step<'a> {
    Open(String),
    Close,
    Text(std::borrow::Cow<'a, str>),
    End,
}

impl<'a> XmlReader<'a> {
    /// Reads the document `bytes`, whose root is `name`; `inner` reads the root's content.
    ///
    /// # Errors
    /// `MalformedXML`, and those of `inner`.
    pub fn document<T>(
        bytes: &'a [u8],
        name: &str,
        inner: impl FnOnce(&mut Self) -> S3Result<T>,
    ) -> S3Result<T> {
        let mut xml = Self::open(bytes, name)?;
        let value = inner(&mut xml)?;
        xml.end()?;
        Ok(value)
    }

    /// At the content of the document's root, which is `name`.
    fn open(bytes: &'a [u8], name: &str) -> S3Result<Self> {
        if bytes.len() > XML_BYTES_MAX {
            return Err(ErrorCode::MaxMessageLengthExceeded.into());
        }
        let text = str::from_utf8(bytes).map_err(|_| malformed("It is not UTF-8."))?;
        let mut reader = Reader::from_str(text.strip_prefix('\u{FEFF}').unwrap_or(text));
        reader.config_mut().expand_empty_elements = true;
        let mut xml = Self { reader, depth: 0 };
        loop {
            match xml.step()? {
                Step::Open(found) if found == name => return Ok(xml),
                Step::Text(text) if text.trim().is_empty() => {}
                _ => return Err(malformed(&format!("Its root is not {name}."))),
            }
        }
    }

    /// Reads the rest of the document.
    fn end(&mut self) -> S3Result<()> {
        self.skip_to(0)?;
        loop {
            match self.step()? {
                Step::End => return Ok(()),
                Step::Text(text) if text.trim().is_empty() => {}
                _ => return Err(malformed("Something follows its root.")),
            }
        }
    }

    /// Calls `each` with the name of every child of the present element. Children that it does not read are skipped.
    ///
    /// # Errors
    /// `MalformedXML`, and those of `each`.
    pub fn children(&mut self, mut each: impl FnMut(&str, &mut Self) -> S3Result<()>) -> S3Result<()> {
        self.each_child(&mut each)
    }

    /// Not generic: its code is long, and has dozens of callers.
    fn each_child(&mut self, each: &mut dyn FnMut(&str, &mut Self) -> S3Result<()>) -> S3Result<()> {
        let depth = self.depth;
        while self.depth >= depth {
            match self.step()? {
                Step::Open(name) => {
                    each(&name, self)?;
                    self.skip_to(depth)?;
                }
                Step::Text(text) if !text.trim().is_empty() => {
                    return Err(malformed("There is text between elements."));
                }
                Step::Text(_) | Step::Close => {}
                Step::End => return Err(malformed("It is cut.")),
            }
        }
        Ok(())
    }

    /// The text of the present element, which has no children, as it is.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn text(&mut self) -> S3Result<String> {
        let mut out = String::new();
        loop {
            match self.step()? {
                Step::Text(text) => out.push_str(&text),
                Step::Close => return Ok(out),
                Step::Open(name) => return Err(malformed(&format!("{name} is not allowed there."))),
                Step::End => return Err(malformed("It is cut.")),
            }
        }
    }

    /// The text without spaces around it.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn word(&mut self) -> S3Result<String> {
        Ok(self.text()?.trim().to_owned())
    }

    /// The text as a number.
    ///
    /// # Errors
    /// `MalformedXML` if it is none.
    pub fn number<T: std::str::FromStr>(&mut self) -> S3Result<T> {
        let word = self.word()?;
        word.parse().map_err(|_| malformed(&format!("'{}' is not a number in its range.", shortened(&word))))
    }

    /// The text as `true` or `false`.
    ///
    /// # Errors
    /// `MalformedXML`.
    pub fn flag(&mut self) -> S3Result<bool> {
        match self.word()?.to_ascii_lowercase().as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(malformed("A flag is true or false.")),
        }
    }

    /// Skips everything up to the end of the element at this depth's child.
    fn skip_to(&mut self, depth: usize) -> S3Result<()> {
        while self.depth > depth {
            if let Step::End = self.step()? {
                return Err(malformed("It is cut."));
            }
        }
        Ok(())
    }

    fn step(&mut self) -> S3Result<Step<'a>> {
        loop {
            return Ok(match self.reader.read_event().map_err(|_| malformed("It is not well-formed."))? {
                Event::Start(element) => {
                    self.depth += 1;
                    if self.depth > DEPTH_MAX {
                        return Err(malformed("It is nested too deeply."));
                    }
                    Step::Open(AsRef::<str>::as_ref(&element.local_name()).to_owned())
                }
                Event::End(_) => {
                    self.depth -= 1;
                    Step::Close
                }
                Event::Text(text) => Step::Text(text.xml10_content()),
                Event::CData(text) => Step::Text(text.xml10_content()),
                Event::GeneralRef(reference) => Step::Text(resolve(&reference)?.to_string().into()),
                Event::Decl(declaration) => {
                    check_encoding(declaration.encoding().and_then(Result::ok).as_deref())?;
                    continue;
                }
                Event::DocType(_) => return Err(malformed("A document type is not allowed.")),
                Event::Eof if self.depth > 0 => return Err(malformed("It is cut.")),
                Event::Eof => Step::End,
                Event::Comment(_) | Event::PI(_) | Event::Empty(_) => continue,
            });
        }
    }
}

fn check_encoding(encoding: Option<&str>) -> S3Result<()> {
    let is_known = |name: &str| name.eq_ignore_ascii_case("utf-8") || name.eq_ignore_ascii_case("us-ascii");
    if encoding.is_none_or(is_known) { Ok(()) } else { Err(malformed("Its encoding is not UTF-8.")) }
}

/// The character of a numeric reference, or of one of the five entities.
fn resolve(reference: &BytesRef<'_>) -> S3Result<char> {
    let by_number =
        reference.resolve_char_ref().map_err(|_| malformed("A character reference is not valid."))?;
    let by_name = match reference.xml10_content().as_ref() {
        "amp" => Some('&'),
        "lt" => Some('<'),
        "gt" => Some('>'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        _ => None,
    };
    by_number.or(by_name).ok_or_else(|| malformed("It has an entity."))
}

/// `MalformedXML` with a reason.
pub(crate) fn malformed(why: &str) -> S3Error {
    S3Error::new(ErrorCode::MalformedXML, format!("The XML is not valid. {why}"))
}

/// The start of a text from outside, for a message.
fn shortened(text: &str) -> String {
    text.chars().take(32).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &[u8]) -> Result<Vec<(String, String)>, ErrorCode> {
        let pairs = XmlReader::document(text, "R", |xml| {
            let mut pairs = Vec::new();
            xml.children(|name, xml| {
                if name != "Skip" {
                    pairs.push((name.to_owned(), xml.text()?));
                }
                Ok(())
            })?;
            Ok(pairs)
        });
        pairs.map_err(|error| error.code)
    }

    #[test]
    fn text_is_kept_as_it_is_and_unknown_elements_are_skipped() {
        let text = "\u{FEFF}<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<!-- c --><x:R xmlns:x=\"u\">\n<K a=\"1\"> a&amp;&#x41;&lt;<![CDATA[<b>]]>\
            </K><Skip><K>1</K>text<Deep/></Skip><E/><?pi?></x:R>\n";
        let expected =
            [("K", " a&A<<b>"), ("E", "")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(read(text.as_bytes()).unwrap(), expected);
    }

    #[test]
    fn hostile_documents_are_refused() {
        let deep = format!("<R>{}{}</R>", "<a>".repeat(1_000), "</a>".repeat(1_000));
        for text in [
            "",
            "R",
            "<S></S>",
            "<R>",
            "<R><K></R>",
            "<R><K>1</L></R>",
            "<R><K>1<L/></K></R>",
            "<R>text</R>",
            "<R/><R/>",
            "<R/>text",
            "<!DOCTYPE R [<!ENTITY a \"b\">]><R/>",
            "<R><K>&a;</K></R>",
            "<R><K>&#xD800;</K></R>",
            "<?xml version=\"1.0\" encoding=\"utf-16\"?><R/>",
            &deep,
        ] {
            assert_eq!(read(text.as_bytes()), Err(ErrorCode::MalformedXML), "{text}");
        }
        assert_eq!(read(b"<R><K>\xff</K></R>"), Err(ErrorCode::MalformedXML));
        assert_eq!(read(b"<\0R\0/\0>\0"), Err(ErrorCode::MalformedXML));
        assert_eq!(read(&vec![b' '; XML_BYTES_MAX + 1]), Err(ErrorCode::MaxMessageLengthExceeded));
        let many = format!("<R>{}</R>", "<K/>".repeat(1_000));
        assert_eq!(read(many.as_bytes()).unwrap().len(), 1_000);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>, text in "[<>/RK&;#x!\\[\\]?=\" a-]{0,64}") {
            let _ = read(&bytes);
            let _ = read(format!("<R>{text}</R>").as_bytes());
        }
    }
}
