"""What the target is asked while it writes the samples that its draft learns from.

A few thousand topics, places and tasks are combined at random, so that no two
shards ask the same. None of it is in data/prompts.jsonl, which is for measuring.
"""
THINGS = """\
glaciers|honey bees|the printing press|volcanoes|vaccines|black holes|tea|
chess openings|sourdough bread|the Silk Road|solar panels|migraines|inflation|jazz|
compound interest|octopuses|earthquakes|the Roman army|photosynthesis|haiku|gravity|
electric cars|medieval castles|coral reefs|the stock market|insomnia|
public speaking|bicycles|recycling|the French Revolution|probability|houseplants|
antibiotics|whales|time zones|the water cycle|opera|hydrogen|democracy|tornadoes|
knitting|satellites|rainforests|fractions|the heart|steam engines|chocolate|
mortgages|wolves|rainbows|the immune system|plate tectonics|encryption|ballet|
the moon landing|penguins|sleep|the human eye|windmills|salt|mushrooms|friendship|
stress at work|a sore back|magnets|DNA|comets|the piano|budgeting|lightning|
the Vikings|pottery|databases|spiders|fire|search engines|aqueducts|cheese making|
marathon training|the periodic table|cacti|tides|origami|monsoons|the violin|
dinosaurs|deserts|paper|concrete|frogs|saffron|video games|elections|the brain|
vitamin D|compost|kites|barcodes|submarines|bamboo|street food|jet lag|graph theory|
owls|the Aztecs|batteries|glass|typewriters|yoga|neural networks|wildfires|
the Great Wall|planets|anxiety|the guitar|subway systems|remote work|perfume|
estuaries|hibernation|the Cold War|mirrors|job interviews|time management|first aid|
lighthouse lamps|clay tablets|fermentation|the alphabet|recursion|hash tables|
bird migration|map making|GPS|snow|pasta|silk|credit cards"""

WHO = """\
a retired sailor|a shy robot|twin sisters|a lost dog|a young chemist|
a blind painter|a tired nurse|a baker|an old clockmaker|a dragon|a bus driver|
a new teacher|a spy|a beekeeper|a violinist|a ghost|a farmer's son|an astronaut|
a librarian|a thief|a talking crow|a princess|a street cat|a detective|
a mountain guide|an exiled king|a gardener|a child who cannot sleep|two rival cooks|
a fisherman|a seamstress|an inventor|a postman|a grandmother|a time traveller|
a small whale|a knight without a horse"""

WHERE = """\
in a flooded city|on a night train|at the edge of a desert|in a small library|
on a distant moon|in an abandoned theatre|during a long winter|on a crowded beach|
in a village without clocks|at a border crossing|under the sea|
in a hospital at night|on a cargo ship|in a walled garden|on the last day of summer|
in an airport|in a cave|at a market in the rain|in a castle kitchen|
at the top of a radio tower|in a silent forest|in the year 2090|during an eclipse|
in a broken lift|on a rope bridge|at a wedding"""

CODE = """\
adds up the even numbers in a list|checks whether a word is a palindrome|
counts the vowels in a text|finds the largest of three numbers|
sorts names by length|converts Celsius to Fahrenheit|removes duplicates from a list|
computes a factorial|reads a CSV file and prints its rows|merges two dictionaries|
finds prime numbers|counts how often each word occurs|checks for balanced brackets|
flattens nested lists|computes the Fibonacci sequence|finds the median|
validates an email address|draws a triangle of stars|transposes a matrix|
finds the second largest element|implements a stack|implements binary search|
implements a linked list|rolls two dice|computes the distance between two points|
finds common elements of two lists|reverses the words of a sentence|
groups words by their first letter|parses a date|converts a number to binary|
computes an average|finds the longest word|swaps two variables|downloads a web page|
writes a list to a file|computes simple interest|simulates a bank account|
builds a queue|finds anagrams|shuffles a deck of cards"""

LANGUAGES = "Python|Python|Python|JavaScript|Java|C|SQL|Ruby|Go|Bash|TypeScript|Rust"

TONES = """\
for a ten-year-old|in two sentences|in detail|step by step|with an example|
in simple words|for an expert|as a list|in one paragraph|with pros and cons|
as a poem|with numbers where you can|for a magazine|
as a dialogue between two friends"""

OCCASIONS = """\
a birthday|a late delivery|a job application|a broken heater|a refund|a school trip|
a missed meeting|a new neighbour|a holiday request|a wedding invitation|
a lost parcel|a thank-you to a teacher|a complaint about noise|a project update|
moving|a product launch|a reminder about a deadline|a power cut|a book club|
a dentist visit"""

# {thing}, {who}, ... are replaced by a random entry of the list above.
ASKED = {
    "chat": """\
What is special about {thing}?|Explain {thing} {tone}.|
How did people learn about {thing}?|Why does {thing} matter today?|
Tell me three facts about {thing}.|
What is the difference between {thing} and {other}?|
Compare {thing} with {other} {tone}.|
I know nothing about {thing}. Where do I start?|
Give me advice about {thing} {tone}.|
Is it true that {thing} and {other} have something in common?|
List ten words that go with {thing}.|What are common mistakes with {thing}?|
Write a quiz about {thing}.|What would the world be like without {thing}?|
Hi! I have to give a talk on {thing}.|Write an email about {occasion}.|
Draft a short, polite note about {occasion} {tone}.|
Plan a day around {thing} for my family.|
Give me five ideas for a project on {thing}.|
What questions should I ask an expert on {thing}?|
Write an outline of an essay on {thing}.|Can you help me with {occasion}?|
What is the history of {thing}, {tone}?""",
    "story": """\
Write a story about {who} {where}.|Write a poem about {thing} {where}.|
Tell me a funny tale of {who} and {whom}.|
Write the opening of a novel: {who}, {where}.|Describe {who} {where} {tone}.|
Write a dialogue between {who} and {whom} {where}.|
Once upon a time there was {who}. Go on.|Write a letter from {who} to {whom}.|
Write a short scene {where} in which {who} learns about {thing}.|
Invent a myth about {thing}.|Write a limerick about {who}.|
Continue: {Who} woke up {where} and""",
    "code": """\
Write a {language} function that {code}.|How do I write {language} code|
that {code}?|Write a {language} program that {code}, with comments.|
Show me a class in {language} that {code}.|
Explain how {language} code that {code} works, line by line.|
Write tests for a {language} function that {code}.|
Give me two ways to write {language} code that {code}.|
I am new to {language}. How would I write something that {code}?""",
    "text": """\
Summarise this text in one sentence:|Summarise the text below:|
Rewrite this text in plain words:|Correct the mistakes in this text:|
List the main points of this|text:|Which names and places are in this text?|
Translate this text into French:|Translate this text into Spanish:|
Make this text shorter:|Turn this text into an email:|Give this|text a title:|
Rewrite this text in the past tense:|Continue this text:|What is this text about?|
Replace every name in this text by another one:|Rewrite this text politely:|
Write three questions about this text:|Copy this text, but with shorter sentences:""",
}

# The user's first words, where the target makes up the question itself.
OPENERS = """\
How|What|Why|Can you|Please|Write|I|I'm|Explain|Is|Tell me|My|Which|Given|Who|When|
Create|Describe|Should|Hello|Do|Make|The|If|In|List|Find|Where|Imagine|Could you"""


LISTS = dict(thing=THINGS, other=THINGS, who=WHO, whom=WHO, Who=WHO, where=WHERE,
             code=CODE, language=LANGUAGES, tone=TONES, occasion=OCCASIONS)


def entries(text):
    """The entries of a list above; lines are broken behind a | or not at all."""
    return text.replace("|\n", "|").split("|")


def question(kind, g):
    """A random question of a kind in ASKED; g is a random.Random."""
    picked = {name: g.choice(entries(words)) for name, words in LISTS.items()}
    picked["Who"] = picked["Who"].capitalize()
    return g.choice(entries(ASKED[kind])).format(**picked)
