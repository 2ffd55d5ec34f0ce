"""Everyday kinds: how-to questions, and short emails or messages to write."""

from __future__ import annotations

import random
from collections.abc import Iterator

from demo_prompts.mixing import crossed, items

HOW_TO = (
    "How do I {}? Answer in a few short steps.",
    "How can I {}? Keep it brief.",
    "Give me three tips on how to {}.",
    "Explain in a few sentences how to {}.",
)
MESSAGE = (
    "Write a short email to {}.",
    "Write a brief and polite message to {}.",
    "Write a three-sentence email to {}.",
)
ERRANDS = items("""
    boil an egg; cook rice; make pancakes; bake bread; make a salad; brew coffee; make lemonade; cut an onion; store
    fresh herbs; clean a microwave oven; clean windows; remove a coffee stain; wash a wool sweater; iron a shirt; fold
    a shirt; sew on a button; organize a closet; pack a suitcase; plan a weekly menu; write a shopping list; save
    money on groceries; make a monthly budget; open a bank account; write a resume; prepare for a job interview; ask
    for a raise; give a short speech; lead a meeting; take good notes; study for an exam; learn a new language;
    memorize a poem; read faster; improve my handwriting; write a thank-you card; tell a good story; make new friends;
    apologize to a friend; calm down before an exam; fall asleep faster; wake up early; start running; stretch after
    sport; do a push-up; learn to swim; ride a bicycle safely; fix a flat bicycle tire; change a light bulb; hang a
    picture; paint a wall; unclog a sink; sharpen a knife; build a bird house; plant a tree; grow tomatoes; water
    houseplants; make compost; attract bees to a garden; train a puppy; feed a cat; clean a fish tank; take care of a
    rabbit; take better photos; draw a face; fold a paper plane; play a simple chord on the guitar; tune a guitar;
    learn chess; solve a crossword; plan a birthday party; wrap a gift; set a table; pitch a tent; light a campfire
    safely; read a map; use a compass; prepare for a long flight; find cheap train tickets; choose a good backpack;
    create a strong password; back up my files; speed up an old computer; install Python; run a Python script; read a
    file in Python; sort a list in Python; reverse a string in Python; remove duplicates from a table; make a chart in
    a spreadsheet; write a clear email; unsubscribe from emails; take a screenshot; rename many files at once; convert
    a fraction to a percentage; calculate an average; measure the height of a tree; treat a small burn; stop a
    nosebleed; wash my hands properly; reduce plastic waste; save electricity
""")
OCCASIONS = items("""
    a colleague asking for the latest sales report; a manager asking for a day off on Friday; a teacher explaining why
    my child is sick; a neighbor asking them to water my plants; a landlord about a broken heater; a friend inviting
    them to dinner on Saturday; a friend thanking them for a birthday gift; a customer saying that the order is
    delayed; a customer thanking them for a purchase; a hotel asking about a late check-in; a hotel canceling a
    reservation; a restaurant booking a table for four; a doctor's office moving an appointment; a dentist asking for
    an appointment; a library asking to renew two books; a shop asking for a refund; a shop asking if a red jacket is
    in stock; a team announcing a meeting on Monday; a team congratulating them on a finished project; a new colleague
    welcoming them; a colleague saying goodbye before a new job; a professor asking for a short extension; a classmate
    asking for the notes of the last lesson; a company applying for a summer job; a company asking about the status of
    an application; a bank reporting a lost card; an internet provider about a slow connection; a bus company about a
    lost umbrella; a sports club asking about training hours; a music teacher canceling a lesson; a cousin asking
    about their holiday; grandparents thanking them for a nice weekend; parents telling them about a new apartment; a
    roommate about cleaning the kitchen; a neighbor apologizing for loud music; a neighbor offering help with the
    garden; a photographer asking for prices; a baker ordering a birthday cake; a mechanic asking when the car is
    ready; a city office reporting a broken street light; a museum asking about group tickets; a school offering help
    at the summer festival; a coach saying that I am injured; a book club suggesting the next book; a supplier asking
    for a new delivery date; a client sending an invoice; a client reminding them of an unpaid invoice; a client
    proposing a call next week; a tour guide thanking them for the tour; a travel agency asking about trips to Italy;
    a vet asking about vaccinations for a dog; an old friend asking how they are; a friend who has passed an exam; a
    friend who is moving to another city; a friend who is ill; a friend canceling a trip because of the weather; a
    colleague asking for feedback on a text; a colleague asking to swap shifts; a manager reporting that a task is
    done; a manager suggesting a weekly meeting; a newspaper canceling a subscription; a choir asking about joining; a
    babysitter confirming the time; a conference asking about the program; a volunteer thanking them for their help; a
    furniture shop about a missing screw; a phone company asking to change a contract; a swimming pool asking about
    opening hours; a gardener asking to cut the hedge
""")


def how_to(rng: random.Random) -> Iterator[str]:
    return (template.format(errand) for template, errand in crossed(rng, HOW_TO, ERRANDS))


def message(rng: random.Random) -> Iterator[str]:
    return (template.format(occasion) for template, occasion in crossed(rng, MESSAGE, OCCASIONS))
