//! Path patterns: `*` within a segment, `**` across segments; and which paths can be judged at all.
