// The server's routes that this page uses.

// Beside this page. Not relative: a page opened as http://user:key@host/ must not pass those on.
const address = (path) => location.origin + location.pathname + path;

// An error that the server answered with. `param` is the field that it names, or null.
export class ServerError extends Error {
  constructor(message, status = 0, param = null) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

async function refusal(response) {
  const body = await response.json().catch(() => null);
  const error = body?.error;
  return new ServerError(error?.message ?? `HTTP ${response.status}`, response.status,
                         error?.param ?? null);
}

async function get(path) {
  const response = await fetch(address(path));
  if (!response.ok) throw await refusal(response);
  return response;
}

async function post(path, body, signal) {
  const response = await fetch(address(path), {
    method: "POST", headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body), signal,
  });
  if (!response.ok) throw await refusal(response);
  return response;
}

// The data of each server-sent event; chunks of the network end anywhere.
export async function* events(response) {
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  let pending = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    pending += decoder.decode(value, { stream: true });
    let start = 0;
    for (let end; (end = pending.indexOf("\n\n", start)) >= 0; start = end + 2) {
      if (pending.startsWith("data: ", start)) yield pending.slice(start + 6, end);
    }
    pending = pending.slice(start);
  }
}

// Yields the chunks of a streamed answer. Throws a ServerError.
async function* chunks(path, body, signal) {
  for await (const data of events(await post(path, body, signal))) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServerError(chunk.error.message, 0, chunk.error.param ?? null);
    yield chunk;
  }
}

export const api = {
  chat: (body, signal) => chunks("v1/chat/completions", body, signal),
  complete: (body, signal) => chunks("v1/completions", body, signal),
  tokenize: async (body) => (await (await post("tokenize", body)).json()).tokens,
  models: async () => (await (await get("v1/models")).json()).data,
  cache: async () => (await get("v1/cache")).json(),
  metrics: async () => (await get("metrics")).text(),
};
