"""Search in the Chinese edition: index and query are both cut into single characters and pairs of characters.

Sphinx's own Chinese search needs a word segmenter to build the index (without it no Chinese text is indexed) and
never segments the query, so that a compound such as 内存带宽 finds nothing. Pairs need no dictionary: a compound is
found where all its pairs are.
"""

import re

from sphinx.search.zh import SearchChinese

# Read alike by Python's and JavaScript's regular expressions. Latin words and numbers stay whole.
_RUNS = r"[\u3400-\u4dbf\u4e00-\u9fff]+|[A-Za-z0-9_]+"


class ChineseBigrams(SearchChinese):
    lang = "zh"
    # A query is cut into pairs alone: a page that has all of them has its characters too.
    js_splitter_code = r"""
function splitQuery(query) {
  const words = [];
  for (const run of query.match(/RUNS/g) || []) {
    if (run.length === 1 || run.charCodeAt(0) < 128) words.push(run);
    else for (let i = 0; i + 1 < run.length; i++) words.push(run.slice(i, i + 2));
  }
  return words;
}
""".replace("RUNS", _RUNS)

    def split(self, input: str) -> list[str]:
        """Words of ``input``: Latin words whole; of each run of Chinese, every character and every pair."""
        words = []
        for run in re.findall(_RUNS, input):
            if run.isascii():
                words.append(run)
            else:
                words += [*run, *(run[i : i + 2] for i in range(len(run) - 1))]
        return words

    def word_filter(self, stemmed_word: str) -> bool:
        # One Chinese character can be a word (环, ring); one Latin letter is noise.
        return not stemmed_word.isascii() or len(stemmed_word) > 1


def setup(app):
    app.add_search_language(ChineseBigrams)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
