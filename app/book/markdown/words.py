"""The words that the compiler adds to a text, both languages side by side."""

from typing import Final

from samestep.app.contract.languages import Lang, Text

WORDS: Final[dict[str, Text]] = {
    "note": {"zh": "说明", "en": "Note"},
    "warning": {"zh": "注意", "en": "Warning"},
    "conclusion": {"zh": "结论", "en": "Conclusion"},
    "exercise": {"zh": "练习 {}", "en": "Exercise {}"},
    "answer": {"zh": "答案", "en": "Answer"},
    "colon": {"zh": "：", "en": ": "},
    "planned": {"zh": "计划中", "en": "planned"},
    "table": {"zh": "表格 {}", "en": "Table {}"},
    "formula": {"zh": "公式", "en": "Formula"},
    "equation": {"zh": "公式 ({})", "en": "Equation ({})"},
    "code": {"zh": "代码", "en": "Code"},
    "footnotes": {"zh": "脚注", "en": "Footnotes"},
    "footnote": {"zh": "脚注 {}", "en": "Footnote {}"},
    "discuss": {"zh": "讨论或订正本节", "en": "Discuss or correct this section"},
    "back": {"zh": "回到脚注 {} 的引用处", "en": "Back to reference {}"},
}


def word(name: str, lang: Lang, *values: object) -> str:
    return WORDS[name][lang].format(*values)
