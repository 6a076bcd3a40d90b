//! cargo x.

fn main() {}
