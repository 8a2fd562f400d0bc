// A sample data set: questions to the help desk of a shop, with their topics. Learned in one request.

const QUESTIONS = {
  "delivery/late": ["my parcel is late", "the delivery was due yesterday and nothing came", "still waiting for my order", "why does shipping take so long", "my package has not arrived yet", "the courier missed the promised date"],
  "delivery/track": ["where is my parcel", "can I track my order", "the tracking number does not work", "which courier brings my package", "tracking shows no progress", "send me the tracking link"],
  "delivery/address": ["change the delivery address", "I moved to another street", "the parcel goes to my old address", "deliver to my office instead", "wrong postcode on my order", "can a neighbour take the parcel"],
  "delivery/damaged": ["the box arrived damaged", "the glass was broken in the parcel", "my order came crushed", "the item has scratches from transport", "the parcel was wet and torn", "it arrived in pieces"],
  "order/cancel": ["cancel my order", "I ordered by mistake", "please stop the order before it ships", "I do not want it any more", "can I still cancel", "cancel one item of my order"],
  "order/change": ["change the size in my order", "add an item to my order", "I picked the wrong colour", "can I change the quantity", "swap the blue shirt for a green one", "edit my order"],
  "order/missing-item": ["an item is missing from my parcel", "I got two of three items", "the charger was not in the box", "part of my order is missing", "the box was empty", "one shoe is missing"],
  "order/wrong-item": ["you sent the wrong item", "this is not what I ordered", "I received somebody else's order", "wrong size in the parcel", "the colour is not the one I ordered", "I got another model"],
  "return/how": ["how do I return an item", "where do I send it back", "I need a return label", "what is the return address", "can I bring it back to a store", "start a return"],
  "return/deadline": ["how long can I return it", "is it too late to send it back", "return period for sale items", "the thirty days are over", "until when can I return a gift", "deadline for returns"],
  "refund/when": ["when do I get my refund", "I returned it and got no money", "how long does a refund take", "my refund has not arrived", "the refund is still pending", "where is my money"],
  "refund/amount": ["the refund is too small", "you kept the shipping cost", "my refund is lower than the price", "part of the refund is missing", "the discount was taken off my refund", "wrong refund amount"],
  "payment/failed": ["my card was declined", "payment failed at the checkout", "the payment does not go through", "error when I pay", "my bank refuses the payment", "I cannot pay with my card"],
  "payment/methods": ["can I pay by invoice", "do you take bank transfer", "which cards do you accept", "can I pay in instalments", "is cash on delivery possible", "pay with a gift card"],
  "payment/twice": ["I was charged twice", "two payments for one order", "my card shows a double charge", "you took the money two times", "duplicate payment", "charged again for the same order"],
  "invoice/copy": ["I need an invoice", "send me a copy of my bill", "where do I find my receipt", "the invoice has the wrong name", "invoice with tax number", "download the receipt"],
  "account/password": ["I forgot my password", "reset my password", "I cannot log in", "the password link does not work", "my account is locked", "log in fails"],
  "account/email": ["change my email address", "I get no confirmation mail", "my email is spelled wrong", "use another email for my account", "verification email did not come", "update my mail"],
  "account/delete": ["delete my account", "erase my data", "close my account", "remove all my personal data", "I want to leave", "forget everything about me"],
  "product/stock": ["when is it back in stock", "is this available in medium", "sold out again", "tell me when it is available", "do you have more of these", "is the item in stock"],
  "product/warranty": ["how long is the warranty", "it broke after two months", "is the repair free", "claim under warranty", "the battery died within a year", "guarantee for headphones"],
  "discount/code": ["my discount code does not work", "the voucher is not accepted", "where do I enter the coupon", "the promo code has expired", "do you have a student discount", "code gives an error"],
};

/** The sample as a batch for `/learn`; topics alternate, so that the score over time is meaningful. */
export const sample = () => ({
  source: "sample",
  instances: Array.from({ length: 6 }, (_, round) => Object.entries(QUESTIONS).map(([label, texts]) => ({ text: texts[round], labels: [label] }))).flat(),
});

/** A question that is not in the sample. */
export const QUESTION = "I was charged two times for one order";
