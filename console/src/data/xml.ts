// The XML documents of S3, read with the browser's parser.

export function parse(text: string): Element {
  return new DOMParser().parseFromString(text, "application/xml").documentElement;
}

export function all(element: Element, name: string): Element[] {
  return [...element.children].filter((child) => child.localName === name);
}

export function child(element: Element, name: string): Element | undefined {
  return all(element, name)[0];
}

export function text(element: Element, name: string): string {
  return child(element, name)?.textContent ?? "";
}

export function escape(value: string): string {
  return value.replace(/[<>&"']/g, (letter) => `&#${letter.charCodeAt(0)};`);
}

// A key of a listing with `encoding-type=url`.
export function unquote(value: string): string {
  try {
    return decodeURIComponent(value.replace(/\+/g, "%20"));
  } catch {
    return value;
  }
}
