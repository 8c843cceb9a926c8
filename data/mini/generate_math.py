"""Problems in the form of MATH, in four of its subjects, at three levels.

Easy: one step of primary-school arithmetic, with an answer of one digit. Medium: one or two steps with larger numbers.
Hard: several steps, fractions, or a rule that one has to know. Three of five problems are easy, so that a very small
model can solve some.
"""

import math
import random
from collections.abc import Callable
from fractions import Fraction

Problem = tuple[str, str]  # and its solution


def _numbers(rng: random.Random, *bounds: tuple[int, int]) -> list[int]:
    """One number for each pair of bounds, both included."""
    return [rng.randrange(low, high + 1) for low, high in bounds]


def _boxed(value: int | Fraction) -> str:
    fraction = Fraction(value)
    text = str(fraction) if fraction.denominator == 1 else _latex(fraction.numerator, fraction.denominator)
    return f"\\boxed{{{text}}}"


def _latex(numerator: int | str, denominator: int) -> str:
    return f"\\frac{{{numerator}}}{{{denominator}}}"


def value_of_expression(rng: random.Random) -> Problem:
    x, a = _numbers(rng, (2, 5), (2, 4))
    return (
        f"Find the value of $x + {a}$ at $x = {x}$.",
        f"We have $x + {a} = {x} + {a} = {_boxed(x + a)}$.",
    )


def one_step_equation(rng: random.Random) -> Problem:
    a, x = _numbers(rng, (2, 4), (2, 5))
    return (
        f"Solve $x + {a} = {a + x}$.",
        f"Subtracting ${a}$ from both sides gives $x = {a + x} - {a} = {_boxed(x)}$.",
    )


def one_factor(rng: random.Random) -> Problem:
    a, x = _numbers(rng, (2, 3), (2, 5))
    return (
        f"What is $x$ if ${a}x = {a * x}$?",
        f"Dividing both sides by ${a}$ gives $x = {_boxed(x)}$.",
    )


def linear_equation(rng: random.Random) -> Problem:
    a, b, x = _numbers(rng, (2, 9), (1, 20), (2, 12))
    return (
        f"Which value of $x$ makes the equation ${a}x + {b} = {a * x + b}$ true?",
        f"Subtracting ${b}$ from both sides gives ${a}x = {a * x}$. Dividing by ${a}$ gives $x = {_boxed(x)}$.",
    )


def composed_functions(rng: random.Random) -> Problem:
    a, b, c, k = _numbers(rng, (2, 6), (1, 9), (1, 5), (2, 5))
    inner = k * k + c
    return (
        f"If $f(x) = {a}x - {b}$ and $g(x) = x^2 + {c}$, what is $f(g({k}))$?",
        f"First, $g({k}) = {k * k} + {c} = {inner}$. "
        f"Then $f({inner}) = {a} \\cdot {inner} - {b} = {_boxed(a * inner - b)}$.",
    )


def sum_and_difference(rng: random.Random) -> Problem:
    small, difference = _numbers(rng, (2, 20), (2, 15))
    large = small + difference
    total = small + large
    return (
        f"The sum of two numbers is ${total}$ and their difference is ${difference}$. Find the larger number.",
        f"The sum and the difference add up to twice the larger number, ${total} + {difference} = {2 * large}$. "
        f"The larger number is ${_boxed(large)}$.",
    )


def proportion(rng: random.Random) -> Problem:
    a, b = _numbers(rng, (2, 6), (2, 6))
    c = rng.choice([7, 11, 13])
    return (
        f"Suppose that ${_latex('x', a)} = {_latex(b, c)}$. Write $x$ as a common fraction.",
        f"Multiplying both sides by ${a}$ gives $x = {a} \\cdot {_latex(b, c)} = {_boxed(Fraction(a * b, c))}$.",
    )


def square(rng: random.Random) -> Problem:
    (a,) = _numbers(rng, (2, 3))
    return f"Compute ${a}^2$.", f"We have ${a}^2 = {a} \\cdot {a} = {_boxed(a * a)}$."


def small_sum(rng: random.Random) -> Problem:
    a, b = rng.sample(range(2, 6), 2)
    return f"What is the sum of ${a}$ and ${b}$?", f"The sum is ${a} + {b} = {_boxed(a + b)}$."


def half(rng: random.Random) -> Problem:
    (a,) = _numbers(rng, (2, 5))
    return f"What is half of ${2 * a}$?", f"Half of ${2 * a}$ is ${2 * a} \\div 2 = {_boxed(a)}$."


def percentage(rng: random.Random) -> Problem:
    percent, number = (10 * value for value in _numbers(rng, (1, 9), (4, 30)))
    return (
        f"What is ${percent}\\%$ of ${number}$?",
        f"Ten percent of ${number}$ is ${number // 10}$, and ${percent // 10} \\cdot {number // 10}"
        f" = {_boxed(percent * number // 100)}$.",
    )


def sum_of_fractions(rng: random.Random) -> Problem:
    (a,) = _numbers(rng, (2, 8))
    b = a + 1
    return (
        f"Add ${_latex(1, a)}$ and ${_latex(1, b)}$. Write the sum as a common fraction.",
        f"With the common denominator ${a * b}$ the sum is ${_latex(b, a * b)} + {_latex(a, a * b)}"
        f" = {_boxed(Fraction(a + b, a * b))}$.",
    )


def missing_number(rng: random.Random) -> Problem:
    mean, first, second = _numbers(rng, (10, 20), (2, 12), (9, 18))
    missing = 3 * mean - first - second
    return (
        f"Three numbers have a mean of ${mean}$. Two of them are ${first}$ and ${second}$. Find the third.",
        f"All three add up to $3 \\cdot {mean} = {3 * mean}$. "
        f"The third is ${3 * mean} - {first} - {second} = {_boxed(missing)}$.",
    )


def order_of_operations(rng: random.Random) -> Problem:
    a, b, d, inner = _numbers(rng, (2, 20), (2, 9), (1, 9), (2, 9))
    c = d + inner
    return (
        f"Evaluate ${a} + {b} \\times ({c} - {d})$.",
        f"The parentheses come first, ${c} - {d} = {inner}$, then the product, ${b} \\times {inner} = {b * inner}$. "
        f"The result is ${a} + {b * inner} = {_boxed(a + b * inner)}$.",
    )


def small_remainder(rng: random.Random) -> Problem:
    divisor, quotient = _numbers(rng, (2, 3), (2, 3))
    (rest,) = _numbers(rng, (1, divisor - 1))
    number = divisor * quotient + rest
    return (
        f"Divide ${number}$ by ${divisor}$. What is the remainder?",
        f"We have ${number} = {quotient} \\cdot {divisor} + {rest}$, so the remainder is ${_boxed(rest)}$.",
    )


def next_even_number(rng: random.Random) -> Problem:
    (a,) = _numbers(rng, (1, 3))
    return (
        f"Which even number comes right after ${2 * a}$?",
        f"Even numbers are two apart, so it is ${2 * a} + 2 = {_boxed(2 * a + 2)}$.",
    )


def ones_digit(rng: random.Random) -> Problem:
    tens, ones = rng.sample(range(1, 10), 2)
    return (
        f"What is the ones digit of ${10 * tens + ones}$?",
        f"We have ${10 * tens + ones} = {10 * tens} + {ones}$, so the ones digit is ${_boxed(ones)}$.",
    )


def common_divisor(rng: random.Random) -> Problem:
    shared, a = _numbers(rng, (3, 12), (2, 6))
    b = a + rng.choice([1, 5]) if a % 5 else a + 1
    return (
        f"Find the greatest common divisor of ${shared * a}$ and ${shared * b}$.",
        f"We have ${shared * a} = {shared} \\cdot {a}$ and ${shared * b} = {shared} \\cdot {b}$, and ${a}$ and ${b}$ "
        f"have no common divisor but $1$. The answer is ${_boxed(shared)}$.",
    )


def power_remainder(rng: random.Random) -> Problem:
    base, exponent = _numbers(rng, (2, 5), (4, 5))
    modulus = rng.choice([7, 11])
    power = base**exponent
    quotient, remainder = divmod(power, modulus)
    return (
        f"What is the remainder when ${base}^{exponent}$ is divided by ${modulus}$?",
        f"We have ${base}^{exponent} = {power} = {quotient} \\cdot {modulus} + {remainder}$, "
        f"so the remainder is ${_boxed(remainder)}$.",
    )


def number_of_divisors(rng: random.Random) -> Problem:
    p, q = rng.sample([2, 3, 5, 7], 2)
    a = rng.choice([2, 3])
    return (
        f"How many positive integers divide ${p**a * q}$ evenly?",
        f"Since ${p**a * q} = {p}^{a} \\cdot {q}$, a divisor has ${a + 1}$ possible powers of ${p}$ and $2$ "
        f"of ${q}$. There are ${a + 1} \\cdot 2 = {_boxed(2 * (a + 1))}$ divisors.",
    )


def binary_number(rng: random.Random) -> Problem:
    (number,) = _numbers(rng, (9, 31))
    powers = [2**place for place in reversed(range(number.bit_length())) if number & 2**place]
    return (
        f"The number ${number:b}_2$ is written in base two. Write it in base ten.",
        f"The ones stand for the powers of two in ${' + '.join(map(str, powers))} = {_boxed(number)}$.",
    )


def outfits(rng: random.Random) -> Problem:
    shirts, hats = _numbers(rng, (2, 3), (2, 3))
    return (
        f"In how many ways can one choose one of ${shirts}$ shirts and one of ${hats}$ hats?",
        f"There are ${hats}$ hats for each of the ${shirts}$ shirts, and ${shirts} \\cdot {hats}"
        f" = {_boxed(shirts * hats)}$ ways.",
    )


def fruit(rng: random.Random) -> Problem:
    apples, pears = _numbers(rng, (2, 5), (2, 4))
    return (
        f"A bowl holds ${apples}$ apples and ${pears}$ pears. How many ways are there to pick one fruit?",
        f"There is one way for each fruit, so there are ${apples} + {pears} = {_boxed(apples + pears)}$ ways.",
    )


def queue(rng: random.Random) -> Problem:
    (friends,) = _numbers(rng, (2, 3))
    factors = " \\cdot ".join(map(str, range(friends, 0, -1)))
    return (
        f"In how many different orders can ${friends}$ friends stand in a line?",
        f"Each place has one choice fewer than the one before, so there are ${factors}"
        f" = {_boxed(math.factorial(friends))}$ orders.",
    )


def menus(rng: random.Random) -> Problem:
    a, b, c = _numbers(rng, (2, 5), (3, 6), (2, 4))
    return (
        f"A cook offers ${a}$ soups, ${b}$ main dishes and ${c}$ desserts. How many meals with one of each are there?",
        f"The choices are independent, so there are ${a} \\cdot {b} \\cdot {c} = {_boxed(a * b * c)}$ meals.",
    )


def handshakes(rng: random.Random) -> Problem:
    (people,) = _numbers(rng, (5, 12))
    return (
        f"Each of ${people}$ people shakes hands once with everyone else. How many handshakes are there?",
        f"Each of ${people}$ people shakes ${people - 1}$ hands, which counts every handshake twice: "
        f"${people} \\cdot {people - 1} \\div 2 = {_boxed(math.comb(people, 2))}$.",
    )


def one_ball(rng: random.Random) -> Problem:
    red, blue = _numbers(rng, (2, 9), (3, 10))
    return (
        f"A bag holds ${red}$ red and ${blue}$ blue balls, and one is drawn at random. What is the probability that it "
        "is red? Write it as a common fraction.",
        f"Of ${red + blue}$ balls, ${red}$ are red. The probability is ${_boxed(Fraction(red, red + blue))}$.",
    )


def two_dice(rng: random.Random) -> Problem:
    (total,) = _numbers(rng, (3, 11))
    ways = 6 - abs(total - 7)
    return (
        f"Two fair dice with six faces are rolled. What is the probability that the numbers add up to ${total}$?",
        f"Of the $36$ outcomes, ${ways}$ have this sum. The probability is ${_boxed(Fraction(ways, 36))}$.",
    )


Types = tuple[Callable[[random.Random], Problem], ...]
SUBJECTS: dict[str, tuple[str, dict[str, Types]]] = {
    "algebra": (
        "Algebra",
        {
            "easy": (value_of_expression, one_step_equation, one_factor),
            "medium": (linear_equation, sum_and_difference),
            "hard": (composed_functions, proportion),
        },
    ),
    "prealgebra": (
        "Prealgebra",
        {
            "easy": (square, small_sum, half),
            "medium": (percentage, order_of_operations),
            "hard": (sum_of_fractions, missing_number),
        },
    ),
    "num_theory": (
        "Number Theory",
        {
            "easy": (small_remainder, next_even_number, ones_digit),
            "medium": (common_divisor, binary_number),
            "hard": (power_remainder, number_of_divisors),
        },
    ),
    "counting_and_prob": (
        "Counting & Probability",
        {
            "easy": (outfits, fruit, queue),
            "medium": (menus, one_ball),
            "hard": (handshakes, two_dice),
        },
    ),
}


def rows(rng: random.Random, subject: str) -> dict[str, list[dict[str, str]]]:
    """Five test rows: a problem of each easy type, one medium and one hard; a train row of every level.

    The field "level" is the one that the official tasks keep, whatever the level here.
    """
    title, types = SUBJECTS[subject]

    def row(make: Callable[[random.Random], Problem]) -> dict[str, str]:
        problem, solution = make(rng)
        return {"problem": problem, "level": "Level 5", "solution": solution, "type": title}

    medium, hard = (rng.sample(types[level], 2) for level in ("medium", "hard"))
    test = [row(make) for make in (*types["easy"], medium[0], hard[0])]
    make = rng.choice(types["easy"])
    while (easy := row(make)) in test:
        pass
    train = [easy, row(medium[1]), row(hard[1])]
    rng.shuffle(test)
    return {"train": train, "test": test}
