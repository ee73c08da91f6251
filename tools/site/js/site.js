// Search, and buttons that copy code. Both work on pages that are opened as files, where nothing can be fetched.

// Sections that contain all words, those with them in a heading first.
function findSections(query) {
  const words = query.toLowerCase().split(/\s+/).filter(word => word);
  const found = [];
  for (const section of searchIndex) {
    const title = (section.page + " " + section.title).toLowerCase(), text = section.text.toLowerCase();
    if (!words.length || !words.every(word => title.includes(word) || text.includes(word))) continue;
    let score = 0;
    for (const word of words) score += (title.includes(word) ? 10 : 0) + Math.min(text.split(word).length - 1, 5);
    found.push({ section, score, words });
  }
  return found.sort((a, b) => b.score - a.score).slice(0, 30);
}

// The text around the first word, with all words marked.
function excerpt(text, words) {
  const lower = text.toLowerCase();
  const at = Math.min(...words.map(word => lower.indexOf(word)).filter(place => place >= 0), text.length);
  const from = at < text.length ? Math.max(0, at - 60) : 0, out = document.createElement("p");
  const part = (from ? "… " : "") + text.slice(from, from + 220) + (from + 220 < text.length ? " …" : "");
  const pattern = new RegExp("(" + words.map(word => word.replace(/[^\w\s]/g, "\\$&")).join("|") + ")", "i");
  for (const [i, piece] of part.split(new RegExp(pattern, "gi")).entries()) {
    if (i % 2 === 0) { out.append(piece); continue; }
    out.appendChild(document.createElement("mark")).textContent = piece;
  }
  return out;
}

function showResults(query) {
  const results = document.getElementById("mkdocs-search-results"), found = findSections(query);
  results.replaceChildren(...found.map(({ section, words }) => {
    const article = document.createElement("article"), link = document.createElement("a");
    link.href = base_url + "/" + section.location;
    link.textContent = section.title === section.page ? section.page : section.page + ": " + section.title;
    article.appendChild(document.createElement("h3")).append(link);
    article.append(excerpt(section.text, words));
    return article;
  }));
  if (!found.length && query.trim()) results.textContent = "No section contains all of these words.";
}

document.addEventListener("DOMContentLoaded", () => {
  const input = document.getElementById("mkdocs-search-query");
  input.form.addEventListener("submit", event => {
    event.preventDefault();
    document.querySelector("#mkdocs-search-results a")?.click();
  });
  let index = null;  // loaded when it is first needed
  input.addEventListener("input", () => {
    index ??= new Promise((done, failed) => {
      const script = document.createElement("script");
      script.src = base_url + "/search/search_index.js";
      script.onload = done;
      script.onerror = failed;
      document.head.append(script);
    });
    index.then(() => showResults(input.value), () => {
      document.getElementById("mkdocs-search-results").textContent = "This site has no search/search_index.js.";
    });
  });

  for (const block of document.querySelectorAll("div.highlight")) {
    const button = block.appendChild(document.createElement("button"));
    button.className = "copy";
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      // Of a session, the commands without prompts and output.
      const lines = block.querySelector("pre").textContent.replace(/\n$/, "").split("\n");
      const session = lines[0].startsWith("$ ");
      const commands = lines.filter(line => /^[$>] /.test(line)).map(line => line.slice(2));
      const text = (session ? commands : lines).join("\n");
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(block.querySelector("pre"));
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }
});
