"""The words of the summary that a reader may not know, each in a sentence or two."""

import re

WORDS = {
    "speed-up": "Samples per second as a multiple of those of the smallest size (marked *).",
    "efficiency (effic.)": "Speed-up divided by the ideal speed-up: 100 % is ideal.",
    "where the time goes": (
        "What was lost against the smallest size; 100 % together with what was not lost. "
        "Time gained is negative."
    ),
    "weak scaling": "Each GPU keeps its number of samples per step, so a step of more GPUs is "
    "larger. Ideal: a step takes as long as before.",
    "strong scaling": "A step keeps its number of samples, and more GPUs share them. Ideal: "
    "twice the GPUs take half the time.",
    "exposed communication (exposed comm.)": "The time that ranks wait for communication that no "
    "computing hides.",
    "computing and communication together (comp. + comm.)": (
        "Computing and communication together, where nothing separates the two. That is so if "
        "the loop only marks its passes, or if FSDP cannot be observed."
    ),
    "straggler": "A rank that is slower than the others, so that they wait for it in every step.",
    "equal parts of a run": "Up to 20 blocks with equal numbers of windows of steps.",
    "fixed cost": "The optimizer, and all else that takes as long for few samples as for many.",
    "slower computing": "How much longer forward and backward take than at the smallest size.",
    "not lost": "The share of the time that the ideal would need.",
    "±, (low to high)": "The confidence interval of a mean, at least 95 %. It is over runs where "
    "they were repeated (--repeat 3), else over equal parts of one run.",
    "not certain": "The interval of the ratio contains 1, so chance may explain the difference.",
    "node 0": "The node of rank 0, whose address the others connect to.",
}


def names_of(word: str) -> list[str]:
    """Return the names by which a reader may ask for a word of the table: `efficiency (effic.)`,
    `efficiency` and `effic.`."""
    parts = re.split(r" \(|\)|, ", word)
    return [word, *filter(None, parts)]


def footnote(word: str) -> str:
    """Return the short name of a word, and what it means, for below a table."""
    *_, short = names_of(word)
    meaning = WORDS[word].partition(".")[0]
    return f"{short}: {meaning[0].lower()}{meaning[1:]}"
