// The browser's own database of conversations. `headings` has the fields of the list, so that listing
// does not load the texts. Where the browser refuses a database (some private windows), they live
// until the page is closed, and `persistent` says so.

const kStores = ["conversations", "headings"];

const done = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});
const completed = (transaction) => new Promise((resolve, reject) => {
  transaction.oncomplete = () => resolve();
  transaction.onabort = transaction.onerror = () => reject(transaction.error);
});

const headingOf = ({ id, title, updated }) => ({ id, title, updated });

function contains(record, words) {
  const has = (text) => typeof text === "string" && text.toLowerCase().includes(words);
  return has(record.title) || record.messages.some((m) => has(m.content) || has(m.reasoning));
}

class DatabaseStore {
  persistent = true;
  constructor(database) { this.database = database; }

  async headings() {
    return done(this.database.transaction("headings").objectStore("headings").getAll());
  }
  async load(id) {
    const stored = this.database.transaction("conversations").objectStore("conversations").get(id);
    return await done(stored) ?? null;
  }
  async save(record) {
    const transaction = this.database.transaction(kStores, "readwrite");
    transaction.objectStore("conversations").put(record);
    transaction.objectStore("headings").put(headingOf(record));
    await completed(transaction);
  }
  async remove(id) {
    const transaction = this.database.transaction(kStores, "readwrite");
    for (const name of kStores) transaction.objectStore(name).delete(id);
    await completed(transaction);
  }
  // Returns: ids of the conversations that have the words, in title or messages. One record at a
  // time is in memory.
  search(words) {
    const found = new Set();
    const cursor = this.database.transaction("conversations").objectStore("conversations").openCursor();
    return new Promise((resolve, reject) => {
      cursor.onerror = () => reject(cursor.error);
      cursor.onsuccess = () => {
        if (!cursor.result) return resolve(found);
        if (contains(cursor.result.value, words.toLowerCase())) found.add(cursor.result.key);
        cursor.result.continue();
      };
    });
  }
}

class MemoryStore {
  persistent = false;
  #records = new Map();
  async headings() { return [...this.#records.values()].map(headingOf); }
  async load(id) { return structuredClone(this.#records.get(id) ?? null); }
  async save(record) { this.#records.set(record.id, structuredClone(record)); }
  async remove(id) { this.#records.delete(id); }
  async search(words) {
    const all = [...this.#records.values()];
    return new Set(all.filter((r) => contains(r, words.toLowerCase())).map((r) => r.id));
  }
}

export async function openStore() {
  try {
    const request = indexedDB.open("tessera", 1);
    request.onupgradeneeded = () => {
      for (const name of kStores) request.result.createObjectStore(name, { keyPath: "id" });
    };
    return new DatabaseStore(await done(request));
  } catch {
    return new MemoryStore();
  }
}
