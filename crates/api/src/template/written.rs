//! A template as the file that makes it: every field written out, those that are absent left out.

use std::fmt::{Display, Write as _};

use super::{Root, Template};

impl Template {
    /// TOML that [`parse`](super::parse) reads back to this very template.
    pub fn to_toml(&self) -> String {
        let mut file = File(String::new());
        file.text("name", &self.name);
        file.text("description", &self.description);
        file.text("provider", &self.provider);
        file.text("profile", &self.profile);
        file.text("user", self.user.as_str());
        file.texts("ttl", self.ttl);
        file.plain("output_retention", Some(self.output_retention));
        file.plain("max_file", Some(self.max_file));
        file.list("secrets", &self.secrets);
        file.texts("skills", self.skills.as_ref());
        file.section("root", |file| match &self.root {
            Root::Host => file.text("kind", "host"),
            Root::Image { path } => {
                file.text("kind", "image");
                file.text("path", path);
            }
            Root::Oci { image } => {
                file.text("kind", "oci");
                file.text("image", image);
            }
        });
        file.section("layers", |file| {
            for (layer, asked) in &self.layers {
                file.text(layer.as_str(), asked.as_str());
            }
        });
        file.section("limits", |file| {
            let limits = &self.limits;
            file.texts("memory", limits.memory);
            file.plain("cpus", limits.cpus);
            file.plain("processes", limits.processes);
            file.plain("open_files", limits.open_files);
            file.texts("tmpfs", limits.tmpfs);
            file.texts("disk", limits.disk);
            file.texts("output", limits.output);
            file.texts("wall_time", limits.wall_time);
        });
        file.section("budget", |file| {
            file.plain("tokens", self.budget.tokens);
            file.plain("usd", self.budget.usd.map(|usd| format!("{usd:?}")));
            file.plain("per_minute", self.budget.per_minute);
        });
        file.section("idle", |file| {
            file.texts("pause_after", self.idle.pause_after);
            file.texts("stop_after", self.idle.stop_after);
            file.texts("delete_after", self.idle.delete_after);
        });
        file.section("network", |file| {
            file.list("allow", &self.network.allow);
            file.list("ask", &self.network.ask);
            file.list("deny", &self.network.deny);
        });
        if let Some(sandboxd) = &self.runtimes.sandboxd {
            file.section("runtimes.sandboxd", |file| {
                file.plain("grpc_port", Some(sandboxd.grpc_port));
                file.plain("rest_port", Some(sandboxd.rest_port));
                file.text("root", &sandboxd.root);
                file.texts("token", sandboxd.token.as_ref());
            });
        }
        if let Some(legacy) = &self.runtimes.legacy {
            file.section("runtimes.legacy", |file| {
                file.plain("port", Some(legacy.port));
                file.text("root", &legacy.root);
                file.texts("timeout", Some(legacy.timeout));
            });
        }
        if !self.kubernetes.is_default() {
            file.section("kubernetes", |file| {
                file.texts("runtime_class", self.kubernetes.runtime_class.as_ref());
                file.text("storage", self.kubernetes.storage.as_str());
                file.texts("storage_class", self.kubernetes.storage_class.as_ref());
                file.plain("recover", Some(self.kubernetes.recover));
            });
        }
        file.section("env", |file| {
            for (key, value) in &self.env {
                file.text(&quoted(key), value);
            }
        });
        file.0
    }

    /// The same bytes for the same template: what a digest of it is taken of.
    pub fn canonical(&self) -> serde_json::Result<Vec<u8>> {
        // Fields come in declared order and maps sorted.
        serde_json::to_vec(self)
    }
}

struct File(String);

impl File {
    fn line(&mut self, key: &str, value: impl Display) {
        // Writing to a String cannot fail.
        writeln!(self.0, "{key} = {value}").ok();
    }

    fn text(&mut self, key: &str, value: &str) {
        self.line(key, quoted(value));
    }

    fn texts(&mut self, key: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.text(key, &value.to_string());
        }
    }

    fn plain(&mut self, key: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.line(key, value);
        }
    }

    fn list(&mut self, key: &str, values: &[String]) {
        if !values.is_empty() {
            let values: Vec<_> = values.iter().map(|value| quoted(value)).collect();
            self.line(key, format!("[{}]", values.join(", ")));
        }
    }

    /// Nothing at all when nothing is in it.
    fn section(&mut self, name: &str, fill: impl FnOnce(&mut Self)) {
        let mut inner = Self(String::new());
        fill(&mut inner);
        if !inner.0.is_empty() {
            self.0 += &format!("\n[{name}]\n{}", inner.0);
        }
    }
}

/// A basic string of TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted += "\\n",
            '\t' => quoted += "\\t",
            c if c.is_control() => quoted += &format!("\\u{:04X}", u32::from(c)),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}
