// Drives a server with types generated from openapi.json; the last line is `done`. The compiler is the first half of the
// test: without the types' help none of this compiles.

import createClient from "openapi-fetch";
import type { components, paths } from "./sandbar";

declare const process: { argv: string[] };

const [baseUrl, token] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${token}` } });

function equal(found: unknown, wanted: unknown): void {
  if (found !== wanted) throw new Error(`${JSON.stringify(found)} is not ${JSON.stringify(wanted)}`);
}

async function main(): Promise<void> {
  const made = await client.POST("/v1/sandboxes", { body: { name: "ts" } });
  equal(made.data?.state, "ready");
  const params = { path: { sandbox: "ts" } };
  const ran = await client.POST("/v1/sandboxes/{sandbox}/exec", { params, body: { argv: ["echo", "42"] } });
  // Otherwise it is a stream of chunks.
  equal(ran.data && "stdout" in ran.data && ran.data.stdout, "42\n");
  const missing = await client.GET("/v1/sandboxes/{sandbox}", { params: { path: { sandbox: "nobody" } } });
  const code: components["schemas"]["Code"] | undefined = missing.error?.code;
  equal(code, "unknown_sandbox");
  equal(missing.response.status, missing.error?.status);
  // @ts-expect-error: no such code, and the types know it.
  const never: components["schemas"]["Code"] = "UnknownSandbox";
  void never;
  console.log("done");
}

main();
