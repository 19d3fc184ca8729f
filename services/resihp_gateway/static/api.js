// Requests to the gateway. A token, if one was given, lives as long as the tab.

const KEY = "resihp-token";
export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

export function headers(extra = {}) {
  const bearer = token.get();
  return bearer ? { ...extra, Authorization: `Bearer ${bearer}` } : extra;
}

async function problem(response) {
  try {
    return new Refused(response.status, (await response.json()).detail);
  } catch {
    return new Refused(response.status, `${response.status} ${response.statusText}`);
  }
}

export async function page(path) {
  const response = await fetch(path, { headers: headers() });
  if (!response.ok) throw await problem(response);
  const link = /<([^>]+)>; rel="next"/.exec(response.headers.get("Link") ?? "");
  return { rows: await response.json(), next: link?.[1] ?? null };
}

export async function picture(path) {
  const response = await fetch(path, { headers: headers() });
  if (!response.ok) throw await problem(response);
  return response.text();
}

export const get = async (path) => (await page(path)).rows;

export async function post(path, body) {
  const response = await fetch(path, {
    method: "POST",
    headers: headers({ "Content-Type": "application/json" }),
    body: JSON.stringify(body),
  });
  if (!response.ok) throw await problem(response);
  return response.json();
}
