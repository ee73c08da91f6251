"""Write recipes/chandlery.jsonl: 200 support chats of a ship chandler that does not exist, for docs/fine-tune.md.

usage: make_chats.py > recipes/chandlery.jsonl

25 articles, eight chats each: what it is, its price, its aisle and its guarantee, each asked in two ways. So the fact
of a chat that is held out for validation is in another chat of the training data, as in real support logs.
"""

import json
import random

SHOP = "Kittiwake Chandlery"
# Article, what it is, price in pounds, aisle, years of guarantee.
ARTICLES = [
    ("Gannet 40", "a two-speed winch for jib sheets on boats up to ten metres", 389, 3, 5),
    ("Petrel lamp", "a masthead light with a range of two miles", 74, 7, 2),
    ("Skua pump", "a bilge pump that moves sixty litres a minute", 129, 5, 3),
    ("Tern line", "a braided mooring line that stretches by a fifth", 46, 1, 1),
    ("Fulmar anchor", "a ten-kilogram plough anchor for sand and mud", 158, 2, 10),
    ("Puffin stove", "an alcohol stove with two burners on gimbals", 212, 9, 2),
    ("Heron pole", "a telescopic boat hook of two and a half metres", 33, 1, 1),
    ("Curlew compass", "a bulkhead compass that is lit at night", 97, 7, 4),
    ("Dunlin fender", "an inflatable fender as thick as a bucket", 28, 2, 2),
    ("Osprey vest", "a life jacket that inflates by itself in water", 115, 8, 3),
    ("Avocet block", "a ball-bearing block for ropes of twelve millimetres", 41, 3, 5),
    ("Merlin horn", "a gas horn that is heard half a mile away", 19, 8, 1),
    ("Plover tape", "a sail repair tape that sticks to wet cloth", 12, 4, 1),
    ("Godwit shackle", "a snap shackle of stainless steel for halyards", 36, 3, 10),
    ("Kestrel log", "a paddlewheel log that shows speed and distance", 176, 7, 2),
    ("Bittern bag", "a dry bag of thirty litres with two straps", 39, 6, 2),
    ("Cormorant ladder", "a folding ladder with four steps for the stern", 143, 2, 3),
    ("Siskin knife", "a rigging knife with a marlinspike", 27, 4, 10),
    ("Dipper tank", "a flexible water tank of eighty litres", 88, 5, 2),
    ("Whimbrel heater", "a cabin heater that burns diesel", 640, 9, 3),
    ("Eider coat", "a lined offshore jacket with a high collar", 225, 6, 2),
    ("Grebe glue", "an epoxy that cures under water", 23, 4, 1),
    ("Teal charger", "a battery charger of twenty amperes for two banks", 184, 5, 5),
    ("Wigeon mat", "a cork mat that keeps plates on the table", 15, 9, 1),
    ("Lapwing flare", "a hand flare that burns for a minute", 14, 8, 3),
]


def years(count):
    return "one year" if count == 1 else f"{count} years"


def chats(article, what, price, aisle, guarantee):
    on_shelf = f"The {article} is in aisle {aisle}."
    costs = f"The {article} costs {price} pounds."
    is_a = f"The {article} is {what}."
    holds = f"The {article} has a guarantee of {years(guarantee)}."
    yield [(f"What is the {article}?", is_a)]
    yield [(f"A friend told me about the {article}. What does one use it for?", is_a)]
    yield [(f"How much is the {article}?", costs)]
    yield [(f"Do you sell the {article}?", f"Yes. {is_a}"), ("What do you charge for it?", costs)]
    yield [(f"Where do I find the {article}?", on_shelf)]
    yield [(f"I am in the shop and look for the {article}.", on_shelf), ("Thank you. And its price?", costs)]
    yield [(f"How long is the guarantee of the {article}?", holds)]
    yield [(f"My {article} broke. Is it still under guarantee?", f"{holds} Bring it to the desk with your receipt.")]


def main():
    lines = []
    for row in ARTICLES:
        for turns in chats(*row):
            messages = [{"role": "system", "content": f"You answer customers of {SHOP}."}]
            for question, answer in turns:
                messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            lines.append(json.dumps({"messages": messages}))
    random.Random(7).shuffle(lines)
    print("\n".join(lines))


main()
