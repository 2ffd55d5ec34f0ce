"""What functions do, as the end of 'Write a Python function that ...'."""

from __future__ import annotations

from demo_prompts.mixing import lines

FUNCTIONS_IN_WORDS = lines("""
    converts kilometers to miles
    converts inches to centimeters
    converts a number of hours to minutes
    converts pounds to kilograms
    converts a list of strings to a list of integers
    computes the area of a circle from its radius
    computes the volume of a box from its three sides
    computes the volume of a cylinder
    computes simple interest from amount, rate and years
    computes compound interest after a number of years
    computes the body mass index from weight and height
    computes the distance between two points in the plane
    computes the average speed from distance and time
    computes the tip for a restaurant bill
    computes the price per person when a bill is shared
    computes the dot product of two lists
    computes the age of a person from the year of birth
    checks if a password has at least eight characters and a digit
    checks if a string contains only letters
    checks if an email address contains an at sign and a dot
    checks if two lists have the same elements in any order
    checks if one string is a rotation of another
    checks if a list is empty
    checks if a point lies inside a circle
    checks if three sides can form a triangle
    checks if a year is in the 20th century
    finds the most common element in a list
    finds the most common word in a text
    finds the index of an element in a list, or -1 if it is missing
    finds the longest line in a text file
    finds all even numbers between two numbers
    finds the first repeated character in a string
    finds the largest number in a nested list
    returns a random element of a list
    returns the last element of a list
    returns the current date as a string
    returns the file extension of a file name
    returns the number of days in a given month
    returns the name of a weekday from its number
    returns the Roman numeral of a number from 1 to 10
    returns the domain of an email address
    returns the multiplication table of a number as a list
    prints the numbers from 1 to 10
    prints a triangle of stars with a given height
    prints each item of a list with its index
    prints a countdown from a number to zero
    prints the contents of a dictionary line by line
    reads a text file and returns its number of lines
    reads a CSV file and returns its rows
    reads a JSON file into a dictionary
    writes a list of strings to a file, one per line
    sorts a list of dictionaries by a given key
    sorts a list of tuples by their last element
    sorts the words of a sentence alphabetically
    removes all punctuation from a string
    removes empty strings from a list
    removes a key from a dictionary if it exists
    merges two sorted lists into one sorted list
    merges a list of dictionaries into one
    splits a list into two halves
    splits a string at commas and strips the spaces
    counts the number of lines in a string
    counts how many files are in a folder
    counts the unique words in a text
    implements binary search on a sorted list
    implements bubble sort
    implements selection sort
    implements linear search
    implements a simple stack with push and pop
    simulates rolling two dice
    simulates flipping a coin ten times
    generates a random password of a given length
    adds two matrices of the same size
    rounds every number in a list to two decimals
    formats a number with commas as thousands separators
    formats a name as last name, comma, first name
    counts down from a given number using recursion
    computes the power of a number using recursion
    swaps two variables and returns them
    zips two lists into a dictionary
""")
