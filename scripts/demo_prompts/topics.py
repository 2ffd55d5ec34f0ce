"""Topics of the knowledge kinds. Concepts carry no article where usage wants none: 'what gravity is'."""

from __future__ import annotations

from demo_prompts.mixing import items

CONCEPTS = items("""
    gravity; photosynthesis; evaporation; condensation; friction; magnetism; electricity; an atom; a molecule; a
    chemical reaction; an acid; oxidation; radioactivity; nuclear fusion; energy; kinetic energy; momentum; pressure;
    density; temperature; sound; light; refraction; reflection; a lens; a rainbow; lightning; a black hole; a star; a
    planet; a comet; an asteroid; a galaxy; the solar system; an eclipse; the Moon; a light year; a telescope; a
    satellite; evolution; natural selection; DNA; a gene; a cell; a virus; a bacterium; a protein; an enzyme; a
    hormone; the immune system; a vaccine; the heart; the brain; a neuron; digestion; respiration; metabolism; a
    vitamin; a mammal; a reptile; an insect; a food chain; an ecosystem; biodiversity; pollination; fermentation;
    migration; hibernation; camouflage; a habitat; the water cycle; climate; climate change; the greenhouse effect;
    the ozone layer; erosion; a volcano; an earthquake; a tsunami; a hurricane; a tornado; a glacier; a desert; a
    rainforest; a river delta; an island; a continent; a mountain range; the equator; a time zone; latitude; a map
    scale; plate tectonics; a tide; a coral reef; a fossil; a mineral; groundwater; a computer; an algorithm; a
    programming language; a compiler; an operating system; a database; a computer network; the internet; a web
    browser; a server; cloud computing; encryption; a password manager; a firewall; open source software; a bug in
    software; a variable in programming; a loop in programming; a function in programming; recursion; a linked list; a
    hash table; a stack in computing; a queue in computing; a binary tree; a graph in mathematics; sorting; binary
    search; version control; unit testing; a pixel; a sensor; a battery; a robot; a barcode; GPS; Wi-Fi; Bluetooth; an
    email; a spreadsheet; a prime number; a fraction; a percentage; probability; an average; a median; a standard
    deviation; an equation; a triangle; symmetry; pi; a square root; a logarithm; a matrix; a vector; a set in
    mathematics; inflation; interest; a budget; a loan; a mortgage; insurance; a tax; a stock; supply and demand;
    trade; a bank account; a credit card; democracy; a constitution; an election; a parliament; a law; a treaty;
    freedom of speech; the Renaissance; the Industrial Revolution; the Roman Empire; the Silk Road; ancient Egypt; the
    Stone Age; the printing press; the Bronze Age; feudalism; the French Revolution; the Great Wall of China; a world
    record; a museum; an orchestra; a melody; rhythm in music; a poem; a novel; a metaphor; a simile; a noun; a verb;
    an adjective; grammar; a dictionary; a library; a newspaper; photography; perspective in drawing; architecture;
    compost; recycling; a thermostat; a refrigerator; a microwave oven; a bicycle gear; a pulley; a lever; a sail;
    yeast; baking powder; a balanced diet; a calorie; protein in food; fiber in food; sleep; stress; empathy;
    teamwork; a habit; a to-do list; first aid; a marathon; yoga; chess; a crossword puzzle; a calendar; a leap year;
    daylight saving time; solar power; wind power; hydropower; a steam engine; an electric motor; a bridge; concrete;
    steel; glass; plastic; cotton; paper
""")

LISTINGS = items("""
    fruits that are red; vegetables that grow underground; animals that live in the sea; animals that can fly; mammals
    that lay eggs or live in water; farm animals; breeds of dogs; kinds of birds; kinds of trees; spring flowers;
    countries in Europe; countries in Africa; countries in Asia; countries in South America; capital cities; large
    rivers; high mountains; islands; deserts; oceans and seas; planets of the solar system; chemical elements; metals;
    gases; sources of renewable energy; states of matter; parts of a plant; parts of a flower; organs of the human
    body; bones of the human body; vitamins; healthy breakfast foods; snacks for a road trip; things to pack for a
    beach holiday; things to take on a hike; items in a first aid kit; kitchen tools; garden tools; tools for
    repairing a bicycle; pieces of furniture; rooms in a house; musical instruments; string instruments; kinds of
    dance; sports played with a ball; winter sports; water sports; board games; games for children; hobbies to do at
    home; hobbies to do outdoors; ways to save water; ways to save energy at home; ways to reduce plastic waste; ways
    to learn new words; ways to relax after work; ways to stay focused; tips for better sleep; tips for a job
    interview; tips for saving money; benefits of exercise; benefits of reading; benefits of drinking water;
    programming languages; data types in Python; Python built-in functions; uses of a spreadsheet; parts of a
    computer; kinds of computer files; web browsers; rules for a safe password; shapes in geometry; units of length;
    units of time; words that rhyme with cat; words that rhyme with day; synonyms of happy; synonyms of big; antonyms
    of fast; adjectives that describe weather; verbs of movement; jobs in a hospital; jobs in a school; jobs in a
    restaurant; famous scientists; famous painters; famous inventions; ancient civilizations; means of transport;
    kinds of weather; kinds of cheese; kinds of bread; soups; spices; ingredients of a salad; ingredients of pancakes;
    hot drinks; birthday gift ideas; ideas for a class project; questions to ask a new colleague; good names for a
    cat; colors of autumn; things that are round; materials used for building houses
""")

COMPARISONS = items("""
    a list / a tuple; a stack / a queue; a compiler / an interpreter; a class / an object; a process / a thread; HTTP
    / HTTPS; RAM / a hard disk; a virus / a bacterium; weather / climate; speed / velocity; mass / weight; heat /
    temperature; an acid / a base; an atom / a molecule; a star / a planet; a comet / an asteroid; a mammal / a
    reptile; a frog / a toad; a butterfly / a moth; a crocodile / an alligator; a rabbit / a hare; a dolphin / a
    shark; a fruit / a vegetable; a herb / a spice; butter / margarine; tea / coffee; baking soda / baking powder; jam
    / jelly; a soup / a stew; a city / a town; a lake / a pond; an ocean / a sea; a hill / a mountain; a country / a
    continent; longitude / latitude; an element / a compound; renewable energy / fossil fuels; a debit card / a credit
    card; a loan / a gift; saving / investing; a tax / a fee; a novel / a short story; a simile / a metaphor; a
    biography / an autobiography; a comedy / a tragedy; a noun / a verb; a bar chart / a line chart; mean / median; a
    fraction / a decimal; area / perimeter; a square / a rectangle; a circle / a sphere; even numbers / odd numbers;
    multiplication / addition; a violin / a cello; a piano / a guitar; rock music / classical music; running /
    walking; football / basketball; a bicycle / a motorcycle; a bus / a train; a boat / a ship; a lens / a mirror;
    silk / cotton; wood / metal; steel / iron; a tornado / a hurricane; rain / snow; a democracy / a monarchy; a law /
    a rule; a doctor / a nurse; a teacher / a coach; email / a letter; a laptop / a tablet; a database / a
    spreadsheet; a leader / a manager; a cold / the flu; a variable / a constant; a while loop / a for loop; a
    function / a method
""")
