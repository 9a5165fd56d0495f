// Reads and writes the part of the address behind '#': #/jobs/ID/section?state=active&offset=100.
// SPDX-License-Identifier: Apache-2.0

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

// {parts: ["jobs", "ID"], query: {state: "active"}}
export function parse(hash) {
  const [path, query] = hash.replace(/^#\/?/, "").split("?", 2);
  return { parts: path.split("/").filter(Boolean).map(decoded), query: Object.fromEntries(new URLSearchParams(query)) };
}

export function link(parts, query = {}) {
  const set = Object.entries(query).filter(([, value]) => value !== "" && value !== 0 && value !== null);
  const path = parts.map(encodeURIComponent).join("/");
  return `#/${path}${set.length ? `?${new URLSearchParams(set)}` : ""}`;
}

// The address follows a filter without a new page and without an entry in the browser's history.
export function rewrite(parts, query) {
  history.replaceState(null, "", link(parts, query));
}
