"""What each rule of the price is good for: all compiled plans priced without it."""
