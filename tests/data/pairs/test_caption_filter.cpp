#include "data/pairs/caption_filter.h"

#include <string>

#include "tests/support/catch.h"

using namespace bitloom::data;

TEST_CASE("captions that are too short or empty go", "[pairs]") {
  CHECK(reason_against("", {}) == "empty caption");
  CHECK(reason_against(" \t", {}) == "empty caption");
  CHECK(reason_against("tulip", {}) == "");
  CHECK(reason_against("a tulip", {.min_words = 3}) == "caption too short");
  CHECK(reason_against("a red tulip", {.min_words = 3}) == "");
}

TEST_CASE("captions in English stay, those in other languages go", "[pairs]") {
  for (const char* caption :
       {"a small red circle at the top left", "La Paz", "Los Angeles", "crème brûlée in a café", "die", "con artist", "CJK",
        "no. 7 — “the end”", "the words “das und der” on a wall", "en passant", "2012", "🎉 party popper", "Café"})
    CHECK(reason_against(caption, {}) == "");
  for (const char* caption : {"ein Haus mit dem Garten und der Straße", "la tour et les jardins de Paris", "el perro y la casa",
                              "un gatto che dorme nel letto di una casa", "uma casa com janelas em Lisboa",
                              "een huis op de heuvel van Utrecht", "красная роза", "赤い花", "κόκκινο τριαντάφυλλο"})
    CHECK(reason_against(caption, {}) == "caption not English");
  CHECK(reason_against("красная роза", {.english = false}) == "");
}

TEST_CASE("captions that consist of boilerplate for the most part go", "[pairs]") {
  for (const char* caption :
       {"photographed on 3 May 2012", "Photographed on 2012-05-03.", "photo taken on May 3rd, 2012", "Uploaded: 03/05/2012",
        "Picture taken on the 3rd of May 2012 at 14:30", "image", "IMG photographed on Sunday, May 3, 2012"}) {
    INFO(caption);
    CHECK(reason_against(caption, {}) == (std::string(caption) == "image" ? "" : "boilerplate caption"));
  }
  CHECK(reason_against("a boat on the lake of Garda with mountains behind it, photographed on 3 May 2012", {}) == "");
  CHECK(reason_against("photograph of a dog in may", {}) == "");
  CHECK(reason_against("taken on 3 May 2012", {.boilerplate = false}) == "");
  CHECK(boilerplate_words("a boat, photographed on 3 May 2012") == 5);
  CHECK(boilerplate_words("uploaded on 1/2/2003 and posted in June 2004") == 7);
  CHECK(boilerplate_words("pictures on a wall, 2012") == 0);
  CHECK(boilerplate_words("") == 0);
}
