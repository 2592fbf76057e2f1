// How the search of the site ranks its results. Sphinx counts no words: a page has one score, however often it says one.
var Scorer = {
  score: ([page, title, , , score, , kind]) => {
    // A phrase of site_search.py that is searched as it is, is the answer. A part of one is a hint.
    if (kind === "index") return score === 100 ? score : score / 10;
    const query = new URLSearchParams(window.location.search).get("q").toLowerCase();
    const words = query.split(/\s+/).filter((word) => word);
    const titleWords = title.toLowerCase().split(/[\s@]+/);
    const inTitle = words.filter((word) => titleWords.some((other) => other.startsWith(word))).length / words.length;
    // These pages name everything, and explain nothing.
    const last = ["index", "reference/incidents"].includes(page);
    const shelf = page.startsWith("how-to/") ? 2 : page.startsWith("explanation/") ? 0 : 1;
    return score + 10 * inTitle + (last ? -15 : shelf);
  },

  // Sphinx's own scores, which this object replaces.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
