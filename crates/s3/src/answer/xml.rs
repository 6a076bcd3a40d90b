//! Writes XML: text is escaped as S3 does it, so that every key arrives in a form that an XML parser accepts.

/// The namespace of S3's documents.
pub const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";

/// A document, written from front to back.
#[derive(Debug, Default)]
pub struct XmlWriter(Vec<u8>);

impl XmlWriter {
    /// A document with its declaration.
    #[must_use]
    pub fn document() -> Self {
        Self(b"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n".to_vec())
    }

    /// A document with one element in S3's namespace, whose content `inner` writes.
    #[must_use]
    pub fn of(root: &str, inner: impl FnOnce(&mut Self)) -> Vec<u8> {
        let mut xml = Self::document();
        xml.open_root(root);
        inner(&mut xml);
        xml.close(root);
        xml.finish()
    }

    /// Opens the root element in S3's namespace; [`Self::close`] closes it.
    pub fn open_root(&mut self, root: &str) {
        self.raw("<").raw(root).raw(" xmlns=\"").raw(NAMESPACE).raw("\">");
    }

    /// Closes an element.
    pub fn close(&mut self, name: &str) {
        self.raw("</").raw(name).raw(">");
    }

    /// An element whose content `inner` writes.
    pub fn element(&mut self, name: &str, inner: impl FnOnce(&mut Self)) {
        self.raw("<").raw(name).raw(">");
        inner(self);
        self.close(name);
    }

    /// An element with text.
    pub fn leaf(&mut self, name: &str, text: impl AsRef<str>) {
        self.element(name, |xml| xml.text(text.as_ref()));
    }

    /// An element with a number.
    pub fn number(&mut self, name: &str, number: u64) {
        self.leaf(name, number.to_string());
    }

    /// An element with `true` or `false`.
    pub fn flag(&mut self, name: &str, flag: bool) {
        self.leaf(name, if flag { "true" } else { "false" });
    }

    /// An element with bytes that may be no text: they are read as UTF-8, and each invalid piece becomes U+FFFD.
    pub fn bytes(&mut self, name: &str, bytes: &[u8]) {
        self.element(name, |xml| xml.text(&String::from_utf8_lossy(bytes)));
    }

    /// Escaped text. Characters that XML 1.0 forbids become U+FFFD; line feeds and tabs are references, which no parser
    /// normalises.
    pub fn text(&mut self, text: &str) {
        // Runs of plain bytes are copied whole. 0xEF is the first byte of the two forbidden characters above 0x1F.
        let is_plain = |byte: u8| byte >= b' ' && !matches!(byte, b'&' | b'<' | b'>' | b'"' | 0xEF);
        let mut rest = text;
        loop {
            let plain = rest.bytes().position(|byte| !is_plain(byte)).unwrap_or(rest.len());
            let (run, after) = rest.split_at(plain);
            self.raw(run);
            let Some(c) = after.chars().next() else { return };
            self.character(c);
            rest = &after[c.len_utf8()..];
        }
    }

    fn character(&mut self, c: char) {
        match c {
            '&' => self.raw("&amp;"),
            '<' => self.raw("&lt;"),
            '>' => self.raw("&gt;"),
            '"' => self.raw("&quot;"),
            '\r' => self.raw("&#13;"),
            '\n' => self.raw("&#10;"),
            '\t' => self.raw("&#9;"),
            '\0'..='\u{1F}' | '\u{FFFE}' | '\u{FFFF}' => self.raw("\u{FFFD}"),
            c => self.raw(c.encode_utf8(&mut [0; 4])),
        };
    }

    /// Appends markup, or text that needs no escape.
    pub fn raw(&mut self, text: &str) -> &mut Self {
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    /// Bytes that wait to be taken.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.0.len()
    }

    /// Takes the bytes written so far: a long list is sent piece by piece.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }

    /// The bytes written since the last [`Self::take`].
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_is_escaped_character_by_character(text in "[\\x00-\\x7f\\u{ef00}-\\u{ffff}é]{0,40}") {
            let (mut whole, mut single) = (XmlWriter::default(), XmlWriter::default());
            whole.text(&text);
            text.chars().for_each(|c| single.character(c));
            prop_assert_eq!(whole.finish(), single.finish());
        }
    }

    #[test]
    fn text_is_escaped_and_forbidden_characters_are_replaced() {
        let mut xml = XmlWriter::default();
        xml.leaf("K", "a&b<c>\"d'\r\n\t\u{1}\u{FFFF}é");
        xml.bytes("B", b"\xFF/x");
        xml.number("N", 7);
        xml.flag("F", true);
        assert_eq!(
            String::from_utf8(xml.take()).unwrap(),
            "<K>a&amp;b&lt;c&gt;&quot;d'&#13;&#10;&#9;\u{FFFD}\u{FFFD}é</K><B>\u{FFFD}/x</B><N>7</N><F>true</F>"
        );
        assert_eq!(xml.pending(), 0);
    }

    #[test]
    fn a_document_has_a_declaration_and_the_namespace() {
        let text = String::from_utf8(XmlWriter::of("A", |xml| xml.leaf("B", ""))).unwrap();
        assert_eq!(
            text,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
             <A xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><B></B></A>"
        );
    }
}
