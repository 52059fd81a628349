// Shows the OpenAPI document that the server carries. Text only: nothing of the document is taken for markup.
"use strict";

const METHODS = ["get", "put", "post", "delete", "head"];

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// What stands between backticks is code.
function prose(text) {
  return (text || "").split("`").map((part, at) => (at % 2 ? element("code", {}, part) : part));
}

function schemaName(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  const choices = schema.oneOf || schema.anyOf;
  if (choices) return choices.map(schemaName).join(" or ");
  if (schema.type === "array" || (schema.type || []).includes?.("array")) return `list of ${schemaName(schema.items)}`;
  return [].concat(schema.type || "any").join(" or ");
}

function resolved(api, schema) {
  const name = schema && schema.$ref && schema.$ref.split("/").pop();
  return name ? api.components.schemas[name] : schema;
}

function fields(api, schema) {
  const found = resolved(api, schema) || {};
  const parts = found.allOf ? found.allOf.map((part) => resolved(api, part)) : [found];
  const rows = parts.flatMap((part) =>
    Object.entries(part.properties || {}).map(([name, field]) => ({
      name,
      type: schemaName(field),
      required: (part.required || []).includes(name),
      about: field.description,
    })),
  );
  return rows.length ? table(rows) : null;
}

function table(rows) {
  const line = ({ name, type, required, about }) =>
    element("tr", {}, element("td", {}, element("code", {}, name)), element("td", {}, type + (required ? ", required" : "")), element("td", {}, ...prose(about)));
  return element("table", {}, ...rows.map(line));
}

function section(title, ...children) {
  return [element("h3", {}, title), ...children];
}

function contents(api, operation) {
  const parts = [];
  if (operation.description) parts.push(element("p", {}, ...prose(operation.description)));
  const parameters = (operation.parameters || []).map((parameter) => ({
    name: parameter.name,
    type: `${schemaName(parameter.schema)}, in ${parameter.in}`,
    required: parameter.required,
    about: parameter.description,
  }));
  if (parameters.length) parts.push(...section("Parameters", table(parameters)));
  for (const [type, content] of Object.entries(operation.requestBody?.content || {})) {
    parts.push(...section(`Body: ${schemaName(content.schema)} (${type})`));
    const rows = fields(api, content.schema);
    if (rows) parts.push(rows);
    const example = content.example || resolved(api, content.schema)?.example;
    if (example) parts.push(...section("Example", element("pre", {}, JSON.stringify(example, null, 2))));
  }
  const answers = Object.entries(operation.responses || {}).map(([status, answer]) => ({
    name: status,
    type: Object.values(answer.content || {}).map((content) => schemaName(content.schema)).join(", "),
    about: answer.description,
  }));
  parts.push(...section("Answers", table(answers)));
  return parts;
}

function shown(api, path, method, operation) {
  const head = element(
    "summary",
    {},
    element("span", { class: `method ${method}` }, method.toUpperCase()),
    element("span", { class: "path" }, path),
    element("span", { class: "about" }, operation.summary || ""),
  );
  const body = element("div", { class: "body" });
  const details = element("details", { id: operation.operationId }, head, body);
  // Filled when it is opened: most never are.
  details.addEventListener("toggle", () => body.childNodes.length || body.append(...contents(api, operation)));
  details.dataset.words = `${method} ${path} ${operation.summary} ${operation.description || ""}`.toLowerCase();
  return details;
}

function listed(api) {
  const byTag = new Map(api.tags.map((tag) => [tag.name, { tag, operations: [] }]));
  for (const [path, item] of Object.entries(api.paths))
    for (const method of METHODS.filter((method) => item[method]))
      byTag.get(item[method].tags[0]).operations.push(shown(api, path, method, item[method]));
  return [...byTag.values()].map(({ tag, operations }) =>
    element("section", {}, element("h2", {}, tag.name), element("p", {}, ...prose(tag.description)), ...operations),
  );
}

function filtered(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  for (const group of document.querySelectorAll("#operations section")) {
    const operations = [...group.querySelectorAll("details")];
    for (const one of operations) one.hidden = !words.every((word) => one.dataset.words.includes(word));
    group.hidden = operations.every((one) => one.hidden);
  }
}

async function show() {
  const about = document.getElementById("about");
  try {
    const answer = await fetch("/openapi.json");
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    const api = await answer.json();
    about.replaceChildren(...prose(api.info.description), " ", element("a", { href: "/openapi.json" }, "openapi.json"));
    document.getElementById("operations").replaceChildren(...listed(api));
    document.getElementById("filter").addEventListener("input", (event) => filtered(event.target.value));
    const linked = document.getElementById(location.hash.slice(1));
    if (linked) linked.open = true;
  } catch (error) {
    about.textContent = `The document could not be shown: ${error.message}. Check that the server runs and reload the page.`;
  }
}

async function offerSignOut() {
  const button = document.getElementById("sign-out");
  button.hidden = !(await fetch("/v1/templates")).ok;
  button.addEventListener("click", async () => {
    const answer = await fetch("/v1/logout", { method: "POST" });
    // Whoever is signed out already finds the same page.
    if (answer.ok || answer.status === 401) location.replace("/");
  });
}

show();
// That the server is gone, `show` has said.
offerSignOut().catch(() => {});
